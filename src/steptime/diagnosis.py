"""The spine: from a path to a report. Load, lay out, account, examine, compose."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from steptime._version import __version__
from steptime.errors import NothingMeasuredError, UsageError
from steptime.findings.assemble import assemble
from steptime.findings.case import Case
from steptime.findings.examine import examine
from steptime.findings.regime import regime
from steptime.findings.trace_case import case_of_trace
from steptime.hardware.ceilings import FILE_NAME
from steptime.hardware.ceilings import load as load_machine
from steptime.hardware.datasheet import look_up
from steptime.hardware.machine import Machine
from steptime.kineto.gather import gather, is_traces
from steptime.kineto.reader import DEFAULT_MAX_SIZE
from steptime.kineto.table import Trace
from steptime.kineto.windows import read_rank
from steptime.ledger.account import device_of
from steptime.ledger.recorded import RecordedAccount, account_for_process, operator_time
from steptime.ledger.trace_steps import steps_of
from steptime.recording.load import load
from steptime.recording.recording import Process, Recording
from steptime.report import json
from steptime.report.compose import compose
from steptime.report.cost import cost_of
from steptime.report.report import Cost, Environment, ProcessReport, Report, Verdict
from steptime.timeline.layout import Layout, lay_out_whole
from steptime.timeline.timeline import Mode

LEAST_STEPS = 3
"""Steady steps without which nothing is said."""


def diagnose_paths(paths: Sequence[str], *, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True) -> Report:
    """The report of a recording, of traces (of one job), or of a report that was saved as JSON.

    max_size: bytes of JSON that are read of a rank's traces. cache: whether large ones are remembered.
    """
    first = Path(paths[0])
    if len(paths) == 1 and json.is_report(first):
        return json.read(first.read_bytes(), paths[0])
    if len(paths) == 1 and not is_traces(paths[0]):
        return diagnose(load(first), paths[0])
    folder = next((path for path in paths if Path(path).is_dir() and not is_traces(path)), None)
    if folder is not None:
        raise UsageError("several-recordings", f"{folder} is a recording among several paths: give one alone.")
    found = gather(paths, max_size=max_size)
    traces = [read_rank(rank, max_size=max_size, cache=cache) for rank in found.ranks]
    return diagnose_traces(traces, " ".join(map(shlex.quote, paths)), found.problems)


def diagnose(recording: Recording, source: str) -> Report:
    """The report of a recording. Raises NothingMeasuredError when no process took enough steps."""
    machine = machine_of(recording)
    reports: list[ProcessReport] = []
    problems = list(recording.problems)
    seen = 0
    for process, layout in _trainers(recording):
        steps = layout.timeline.steps
        seen = max(seen, len(steps.begin))
        if steps.steady.sum() < LEAST_STEPS:
            continue
        account = account_for_process(process, layout, machine)
        problems += account.problems
        case = _case(recording, process, layout, account, machine)
        cost = cost_of(process, steps)
        durations, steady = tuple(steps.duration.tolist()), tuple(steps.steady.tolist())
        notes = (*process.notes, f"Warm-up: {layout.timeline.warm_up_reason}.")
        reports.append(_judge(_name(process), process.facts.rank, case, cost, durations, steady, notes))
    if not reports:
        raise _too_few(recording, seen)
    return compose(source, _environment(recording), tuple(reports), tuple(problems))


def _trainers(recording: Recording) -> list[tuple[Process, Layout]]:
    """The processes with their layouts; those that only infer are left out where others train."""
    laid_out = [(process, lay_out_whole(process)) for process in recording.processes]
    trainers = [(process, layout) for process, layout in laid_out if layout.timeline.mode != Mode.FORWARD]
    return trainers or laid_out


def diagnose_traces(traces: Sequence[Trace], source: str, problems: tuple[str, ...] = ()) -> Report:
    """The report of traces, one for each rank. problems: what was said while they were looked for."""
    reports: list[ProcessReport] = []
    for number, trace in enumerate(traces):
        borders = steps_of(trace)
        if not len(borders):
            raise NothingMeasuredError("trace-without-steps", f"{trace.path} holds no event that took time: no step.")
        case = case_of_trace(trace, borders, look_up(device_of(trace)))
        rank = trace.rank if trace.rank is not None else number
        walls = tuple((borders[:, 1] - borders[:, 0]).tolist())
        late = tuple(index >= case.step.warm_up for index in range(len(walls)))
        reports.append(_judge(f"rank {rank}", rank, case, None, walls, late, trace.damage.sentences))
    environment = Environment("", "", device_of(traces[0]), "", "", __version__, len(traces))
    return compose(source, environment, tuple(reports), problems)


def machine_of(recording: Recording) -> Machine | None:
    """The ceilings that were measured beside the recording, else the datasheet's, else none."""
    name = recording.processes[0].facts.device_name if recording.processes else ""
    return load_machine(recording.path / FILE_NAME) or look_up(name)


def _judge(
    name: str,
    rank: int | None,
    case: Case,
    cost: Cost | None,
    durations: tuple[int, ...],
    steady: tuple[bool, ...],
    notes: tuple[str, ...],
) -> ProcessReport:
    examination = examine(case)
    found = regime(case, examination.findings)
    verdict = Verdict(found.name, found.sentence, found.share)
    absent, failed = examination.not_examined, examination.failed
    return ProcessReport(
        name, rank, case, verdict, examination.findings, absent, failed, cost, durations, steady, notes
    )


def _case(
    recording: Recording, process: Process, layout: Layout, account: RecordedAccount, machine: Machine | None
) -> Case:
    neighbours = [other for other in recording.processes if other.facts.host == process.facts.host]
    return assemble(
        process,
        layout,
        ledger=account.ledger,
        operators=account.operators,
        recompute=account.recompute,
        telemetry=recording.telemetry,
        machine=machine,
        trainers_on_host=len(neighbours),
        in_operators=operator_time(account),
    )


def _name(process: Process) -> str:
    facts = process.facts
    return f"rank {facts.rank}" if facts.rank is not None else f"process {facts.pid}"


def _environment(recording: Recording) -> Environment:
    facts, manifest = recording.processes[0].facts, recording.manifest
    return Environment(
        command=shlex.join(manifest.command),
        host=manifest.host,
        device=facts.device_name or facts.device,
        python=facts.python,
        torch=facts.torch,
        steptime=manifest.steptime,
        ranks=len(recording.processes),
    )


def _too_few(recording: Recording, seen: int) -> NothingMeasuredError:
    return NothingMeasuredError(
        "too-few-steps",
        f"{seen} training steps were seen, and an account needs {LEAST_STEPS} behind the warm-up: let it run longer. "
        f"What was recorded is in {recording.path}.",
    )
