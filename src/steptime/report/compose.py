"""From what was found to a report: which process is shown first, and what the reader is to do next."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from steptime.findings.finding import Weight
from steptime.findings.lateness import late_of
from steptime.ranks.comparison import RankComparison
from steptime.remedies.propose import propose
from steptime.report.report import SCHEMA_VERSION, Environment, ProcessReport, Report
from steptime.report.trace_files import carried

EXPLODING = "ST605"
"""What is computed is lost: that comes before how long it takes."""


def compose(
    source: str,
    environment: Environment,
    processes: tuple[ProcessReport, ...],
    problems: tuple[str, ...] = (),
    ranks: RankComparison | None = None,
) -> Report:
    """The report of a recording or of traces. source: the path as the user gave it. processes: at least one.

    The rank that the others wait for comes first, else the slowest training process; it alone keeps its excerpt and
    its traces, and of small ones what is in them.
    """
    ordered = sorted(processes, key=lambda process: (-process.case.step.duration.value, process.rank or 0))
    if _alike(processes):
        ordered = sorted(processes, key=lambda process: (process.rank is None, process.rank or 0))
    ordered = sorted(ordered, key=lambda process: process.rank is None and not process.traces)  # programs of one, too
    late = late_of(ordered[0].case.ranks)
    first = ranks.late.ranks if ranks is not None and ranks.late is not None else (late.rank,) if late else ()
    ordered = sorted(ordered, key=lambda process: process.rank not in first) if first else ordered
    front = replace(ordered[0], traces=carried(ordered[0].traces))
    shown = (front, *(replace(process, excerpt=None, traces=()) for process in ordered[1:]))
    next_ = next_command(source, environment, ordered[0])
    return Report(SCHEMA_VERSION, source, environment, shown, next_, (*_failures(processes), *problems), ranks)


def _failures(processes: tuple[ProcessReport, ...]) -> tuple[str, ...]:
    """Rules and plug-ins that failed, each once."""
    return tuple(dict.fromkeys(f"{who}: {why}" for process in processes for who, why in process.failed))


def of_copies(report: Report, source: str) -> Report:
    """A report of copies that are deleted again, told as what they were copied from: of its traces the names stay.
    source: what the user gave."""
    processes = (
        replace(process, traces=tuple(replace(each, path=Path(each.path).name) for each in process.traces))
        for process in report.processes
    )
    return replace(report, source=source, processes=tuple(processes))


def next_command(source: str, environment: Environment, process: ProcessReport) -> str:
    """What helps most now, ready to paste: a search for the first value that is lost, where the gradients run away;
    trials of the remedies for what was found, or the page of the finding with the most at stake (or of what makes the
    measurement doubtful); trials of what answers a note; else the whole account."""
    if environment.command and any(finding.code == EXPLODING for finding in process.findings):
        return f"steptime nan -- {environment.command}"
    doubts_first = process.case.step.mode != "trace"  # a trace is what it is: nobody can measure it again
    for weight in (Weight.DOUBT, Weight.FINDING) if doubts_first else (Weight.FINDING,):
        for finding in process.findings:
            if finding.weight is weight:
                if weight is Weight.FINDING and _can_be_tried(process):
                    return f"steptime try {shlex.quote(source)}"
                return f"steptime explain {finding.code}"
    if _can_be_tried(process):
        return f"steptime try {shlex.quote(source)}"
    return f"steptime report {shlex.quote(source)} -o report.md"


def _can_be_tried(process: ProcessReport) -> bool:
    """Whether there is a job to run again and a remedy that steptime can apply to it by itself."""
    if process.case.step.mode == "trace":
        return False
    return any(not proposal.advice_only for proposal in propose(process.case, process.findings))


def _alike(processes: tuple[ProcessReport, ...]) -> bool:
    """Whether the steps take equally long, as far as their intervals tell: then rank 0 is the one that people know."""
    durations = [process.case.step.duration for process in processes]
    return max(each.low for each in durations) <= min(each.high for each in durations)
