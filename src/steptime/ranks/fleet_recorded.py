"""The map step of a recording of many ranks: each process is read and reduced by itself, as the traces of others are.

Of each process comes back who it is and its summary; its journal and its traces are forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steptime.hardware.ceilings import FILE_NAME
from steptime.hardware.ceilings import load as load_machine
from steptime.hardware.datasheet import look_up
from steptime.hardware.machine import Machine
from steptime.ledger.recorded import account_for_process
from steptime.ranks.fleet import LOCAL, mapped
from steptime.ranks.recorded import summarise_process
from steptime.ranks.summary import RankSummary
from steptime.recording.load import Contents, load_process
from steptime.recording.recording import Manifest, Process, ProcessFacts, Recording
from steptime.timeline.layout import lay_out_whole
from steptime.timeline.timeline import Mode

LEAST_STEPS = 3
"""Steady steps without which nothing is said."""


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """One process folder. machine: the ceilings that were measured beside the recording, if any."""

    folder: Path
    manifest: Manifest
    machine: Machine | None


@dataclass(frozen=True, slots=True)
class ReducedProcess:
    """What comes back of a process. steps: how many it took, steady: of these. trains: False where it only infers.
    summary: None where it has no rank or too few steps to say anything. told: sentences on it."""

    folder: Path
    facts: ProcessFacts
    steps: int
    steady: int
    trains: bool
    summary: RankSummary | None
    told: tuple[str, ...] = ()


def reduce_process(task: ProcessTask) -> ReducedProcess:
    """The map step. Whatever is damaged is a sentence."""
    process, problems = load_process(task.folder, task.manifest)
    layout = lay_out_whole(process)
    steps = layout.timeline.steps
    steady, facts = int(steps.steady.sum()), process.facts
    trains = layout.timeline.mode != Mode.FORWARD
    if facts.rank is None or steady < LEAST_STEPS:
        return ReducedProcess(task.folder, facts, len(steps.begin), steady, trains, None, problems)
    account = account_for_process(process, layout, task.machine or look_up(facts.device_name))
    summary = summarise_process(process, layout, account)
    told = (*problems, *account.problems)
    return ReducedProcess(task.folder, facts, len(steps.begin), steady, trains, summary, told)


def reduce_processes(
    contents: Contents, *, engine: str = LOCAL, workers: int | None = None
) -> tuple[ReducedProcess, ...]:
    """All processes of a recording, by rank; those that only infer have no summary where others train. Raises
    UsageError and CommandError where a cluster is asked for and is not there."""
    machine = load_machine(contents.path / FILE_NAME)
    tasks = [ProcessTask(folder, contents.manifest, machine) for folder in contents.folders]
    found = list(mapped(reduce_process, tasks, engine, workers))
    found.sort(key=lambda each: (each.facts.rank is None, each.facts.rank or 0, each.facts.pid))
    if any(each.trains and each.steps for each in found):
        found = [each if each.trains else replace(each, summary=None) for each in found]
    return _distinct(found)


def _distinct(found: Sequence[ReducedProcess]) -> tuple[ReducedProcess, ...]:
    """Of several processes of one rank (the job was restarted) the one that trained longest is compared."""
    best = {each.facts.rank: each for each in sorted(found, key=lambda each: each.steady) if each.summary is not None}
    return tuple(each if each.summary is None or each is best[each.facts.rank] else _left_out(each) for each in found)


def _left_out(process: ReducedProcess) -> ReducedProcess:
    said = f"rank {process.facts.rank} is there twice: the process {process.facts.pid} was left out."
    return replace(process, summary=None, told=(*process.told, said))


def hosts(found: Iterable[ReducedProcess | Process]) -> Counter[str]:
    """How many processes each host had; the programs that one ran one after another are one."""
    return Counter(host for host, _ in {each.facts.system_number for each in found})


def machine_of(recording: Recording) -> Machine | None:
    """The ceilings that were measured beside the recording, else the datasheet's, else none."""
    name = recording.processes[0].facts.device_name if recording.processes else ""
    return load_machine(recording.path / FILE_NAME) or look_up(name)
