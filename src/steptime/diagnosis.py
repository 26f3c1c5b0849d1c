"""The spine: from a path to a report. Load, lay out, account, examine, compose."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from steptime._version import __version__
from steptime.advice.assemble import assemble
from steptime.advice.bottleneck import bottleneck
from steptime.advice.device_evidence import with_recorded_device
from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.memory_evidence import with_memory
from steptime.advice.rank_evidence import beside, located
from steptime.advice.trace_evidence import look_at_trace
from steptime.analysis.breakdown import device_of
from steptime.analysis.layout import Layout, lay_out_whole
from steptime.analysis.memory_samples import OverTime, sampled_memory
from steptime.analysis.recorded_breakdown import RecordedBreakdown, breakdown_of_process, operator_time
from steptime.analysis.stragglers.comparison import RankComparison, missing_ranks
from steptime.analysis.stragglers.fleet import (
    LEAST_STEPS,
    LOCAL,
    Reduced,
    ReducedProcess,
    hosts,
    machine_of,
    reduce_all,
    reduce_processes,
)
from steptime.analysis.stragglers.straggler import beside_link, compare, telling
from steptime.analysis.stragglers.summary import RankSummary, summarise, summarise_process
from steptime.analysis.timeline import Mode
from steptime.analysis.trace_steps import FoundSteps, find_steps
from steptime.errors import NothingMeasuredError, RecordingError, TraceError, UsageError
from steptime.machine.machine import Machine
from steptime.machine.peaks import known
from steptime.memory.by_owner import owned_in_process, owned_in_trace
from steptime.recording.load import Contents, load_process, load_whole, look_into, name_of, place
from steptime.recording.recording import Process, Recording
from steptime.report import json
from steptime.report.compose import Facts, compose, cost_of, environment_of, facts_of_trace, peak_bytes
from steptime.report.report import Cost, JobEnvironment, ProcessReport, Report, Verdict
from steptime.report.step_view import StepView, step_view_of_process, step_view_of_trace
from steptime.report.steps import StepSeries, series_of_process, series_of_trace
from steptime.report.trace_files import TraceFile, traces_of, traces_of_process
from steptime.report.trials import trial_report
from steptime.trace.gather import Gathered, RankFiles, gather, is_traces
from steptime.trace.reader import DEFAULT_MAX_SIZE
from steptime.trace.table import Trace
from steptime.trace.windows import read_rank
from steptime.trials.results import is_trial, newest_trial, read_results

DETAILED_RANKS = 32
"""Ranks that are looked at whole; of more, those that tell most."""
MOST_TOLD = 8
"""Sentences about single ranks."""


def diagnose_paths(
    paths: Sequence[str],
    *,
    max_size: int = DEFAULT_MAX_SIZE,
    cache: bool = True,
    engine: str | None = None,
    workers: int | None = None,
) -> Report:
    """The report of a recording, of traces (of one job), or of a report that was saved as JSON.

    max_size: bytes of JSON that are read of a rank's traces. cache: whether large ones are remembered. engine: where
    ranks are reduced (`ranks.fleet.ENGINES`); None: here, one by one, and in worker processes where there are more than
    DETAILED_RANKS. workers: of the engine, by default as many as there are CPUs.
    """
    first = Path(paths[0])
    if len(paths) == 1 and json.is_report(first):
        return json.read_file(first, paths[0])
    if len(paths) == 1 and is_trial(first):
        recording = read_results(first).plan.recording
        return _with_trials(_diagnose_recording(Path(recording), recording, engine, workers), first)
    if len(paths) == 1 and not is_traces(paths[0]):
        return _with_trials(_diagnose_recording(first, paths[0], engine, workers), newest_trial(first))
    folder = next((path for path in paths if Path(path).is_dir() and not is_traces(path)), None)
    if folder is not None:
        raise UsageError("several-recordings", f"{folder} is a recording among several paths: give one alone.")
    found = _gather(paths, max_size)
    if engine is not None or len(found.ranks) > DETAILED_RANKS:
        reduced = reduce_all(found.ranks, engine=engine or LOCAL, workers=workers, max_size=max_size, cache=cache)
        read = partial(read_rank, max_size=max_size, cache=cache)
        return _diagnose_fleet(found, reduced, read, " ".join(map(shlex.quote, paths)))
    traces = (read_rank(rank, max_size=max_size, cache=cache) for rank in found.ranks)
    return diagnose_traces(traces, " ".join(map(shlex.quote, paths)), found.problems)


def _with_trials(report: Report, folder: Path | None) -> Report:
    """The report with what a trial proved; a trial that cannot be read is a problem in words."""
    if folder is None:
        return report
    try:
        return replace(report, trials=trial_report(read_results(folder), str(folder)))
    except RecordingError as error:
        return replace(report, problems=(*report.problems, error.sentence))


def _gather(paths: Sequence[str], max_size: int) -> Gathered:
    try:
        return gather(paths, max_size=max_size)
    except TraceError:
        if _is_flight_recorder_dump(Path(paths[0])):
            raise UsageError(
                "flight-recorder-dump",
                f"{paths[0]} is a dump of torch's flight recorder and no trace: steptime hang "
                f"{' '.join(map(shlex.quote, paths))} says what hung.",
            ) from None
        raise


def _is_flight_recorder_dump(path: Path) -> bool:
    """Whether a file that is no trace begins as a dump does, with its process groups."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(1 << 20)
    return b"pg_config" in start and b"traceEvents" not in start and b"distributedInfo" not in start


def _diagnose_recording(path: Path, source: str, engine: str | None, workers: int | None) -> Report:
    contents = look_into(path)
    if engine is not None or len(contents.folders) > DETAILED_RANKS:
        reduced = reduce_processes(contents, engine=engine or LOCAL, workers=workers)
        comparison = compare([each.summary for each in reduced if each.summary is not None])
        if comparison is not None:
            return _diagnose_many(contents, reduced, comparison, source)
    return diagnose(load_whole(contents), source)


def _diagnose_many(
    contents: Contents, reduced: Sequence[ReducedProcess], comparison: RankComparison, source: str
) -> Report:
    """The report of a recording of more processes than are looked at in detail, as `_diagnose_fleet` does of traces."""
    folders = {each.facts.rank: each.folder for each in reduced if each.summary is not None}
    told = (*contents.problems, *[said for each in reduced for said in each.told][:MOST_TOLD])
    missing = missing_ranks([each.summary.world for each in reduced if each.summary is not None])
    processes = sorted((load_process(folders[rank], contents.manifest)[0] for rank in telling(comparison)), key=place)
    recording = Recording(contents.path, contents.manifest, tuple(processes), contents.telemetry, told)
    machine, beside_it, found = machine_of(recording), hosts(reduced), []
    for process in processes:
        layout = lay_out_whole(process)
        recorded, count = breakdown_of_process(process, layout, machine), beside_it[process.facts.host]
        found.append(_find(recording, process, layout, recorded, machine, on_host=count, detailed=True))
    cases = {each.rank: each.case for each in found if each.rank is not None}
    ranks = located(beside_link(comparison, machine), cases)
    reports = tuple(_judge_found(each, ranks) for each in found)
    environment = replace(environment_of(recording), ranks=len(comparison.rows))
    return compose(source, environment, reports, (*told, *comparison.notes, *missing), ranks)


def diagnose(recording: Recording, source: str) -> Report:
    """The report of a recording. Raises NothingMeasuredError when no process took enough steps."""
    machine = machine_of(recording)
    found, problems = list[_Found](), list(recording.problems)
    seen, beside_it = 0, hosts(recording.processes)
    for process, layout in _trainers(recording):
        steps = layout.timeline.steps
        seen = max(seen, len(steps.begin))
        if steps.steady.sum() < LEAST_STEPS:
            continue
        recorded = breakdown_of_process(process, layout, machine)
        problems += recorded.problems
        count, detailed = beside_it[process.facts.host], len(found) < DETAILED_RANKS
        found.append(_find(recording, process, layout, recorded, machine, on_host=count, detailed=detailed))
    if not (found := _longest_first(found)):
        raise _too_few(recording, seen)
    speaking = {each.rank: each for each in reversed(found)}.values()
    compared = _compared({each.rank: each.summary for each in speaking}, {each.rank: each.case for each in speaking})
    ranks = beside_link(compared, machine)
    reports = tuple(_judge_found(each, ranks) for each in found)
    notes = ranks.notes if ranks is not None else ()
    missing = missing_ranks([each.summary.world for each in found])
    return compose(source, environment_of(recording), reports, (*problems, *notes, *missing), ranks)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What is kept of a recorded process. rank: None where nothing says it; place: then its number stands for it."""

    rank: int | None
    place: int | tuple[str, int]
    case: Case
    summary: RankSummary
    cost: Cost
    notes: tuple[str, ...]
    durations: tuple[int, ...]
    steady: tuple[bool, ...]
    name: str
    peak_bytes: int | None
    series: StepSeries
    step_view: StepView | None
    memory: OverTime | None
    owners: OverTime | None
    traces: tuple[TraceFile, ...]


def _find(
    recording: Recording,
    process: Process,
    layout: Layout,
    recorded: RecordedBreakdown,
    machine: Machine | None,
    *,
    on_host: int,
    detailed: bool,
) -> _Found:
    steps = layout.timeline.steps
    return _Found(
        rank=process.facts.rank,
        place=process.facts.system_number if process.facts.rank is None else process.facts.rank,
        case=_case(recording, process, layout, recorded, machine, on_host),
        summary=summarise_process(process, layout, recorded),
        cost=cost_of(process, steps),
        notes=(*process.notes, f"Warm-up: {layout.timeline.warm_up_reason}."),
        durations=tuple(steps.duration.tolist()),
        steady=tuple(steps.steady.tolist()),
        name=name_of(process),
        peak_bytes=peak_bytes(process),
        series=series_of_process(layout.timeline, recorded.breakdown),
        step_view=step_view_of_process(process, steps, recorded, machine) if detailed else None,
        memory=sampled_memory(process, int(steps.begin[0])),
        owners=owned_in_process(process, recorded.windows) if detailed else None,
        traces=traces_of_process(process),
    )


def _judge_found(found: _Found, ranks: RankComparison | None) -> ProcessReport:
    case = found.case if found.rank is None else beside(found.case, found.rank, ranks)
    judged = _judge(found.name, found.rank, case, found.cost, found.durations, found.steady, found.notes)
    return replace(
        judged,
        peak_bytes=found.peak_bytes,
        series=found.series,
        step_view=found.step_view,
        memory=found.memory,
        memory_by_owner=found.owners,
        traces=found.traces,
    )


def _longest_first(found: Sequence[_Found]) -> list[_Found]:
    """Of several programs of one process, or several processes of one rank, what trained longest speaks for it."""
    places = list(dict.fromkeys(each.place for each in found))
    return sorted(found, key=lambda each: (places.index(each.place), -sum(each.steady)))


def _compared(summaries: Mapping[int | None, RankSummary], cases: Mapping[int | None, Case]) -> RankComparison | None:
    """The ranks beside one another; processes that say no rank belong to nobody's job."""
    known = {rank: case for rank, case in cases.items() if rank is not None}
    comparison = compare([summary for rank, summary in summaries.items() if rank is not None])
    return located(comparison, known)


def _trainers(recording: Recording) -> list[tuple[Process, Layout]]:
    """The processes with their layouts; those that only infer are left out where others train."""
    laid_out = [(process, lay_out_whole(process)) for process in recording.processes]
    trainers = [(process, layout) for process, layout in laid_out if layout.timeline.mode != Mode.FORWARD]
    return trainers or laid_out


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What is kept of a rank's trace, which itself is large, as the next one may be. walls: ns of all steps."""

    name: str
    rank: int
    case: Case
    summary: RankSummary
    walls: tuple[int, ...]
    device: str
    world: int | None
    damage: tuple[str, ...]
    facts: Facts
    series: StepSeries
    step_view: StepView | None
    owners: OverTime | None
    traces: tuple[TraceFile, ...]


def diagnose_traces(traces: Iterable[Trace], source: str, problems: tuple[str, ...] = ()) -> Report:
    """The report of traces, one for each rank, looked at one by one. problems: what was said while they were looked
    for. Raises NothingMeasuredError where none of them has a step."""
    seen: list[_Seen] = []
    empty: list[str] = []
    for number, trace in enumerate(traces):
        steps = find_steps(trace)
        if len(steps.boundaries):
            seen.append(_look(trace, steps, number, detailed=number < DETAILED_RANKS))
        else:
            empty.append(f"{trace.path} holds no event that took time: no step.")
    if not seen:
        raise NothingMeasuredError("trace-without-steps", empty[0] if empty else "There is no trace: no step.")
    ranks = _compared({each.rank: each.summary for each in seen}, {each.rank: each.case for each in seen})
    reports = tuple(_judge_trace(each, beside(each.case, each.rank, ranks)) for each in seen)
    told = (f"{each.name}: {said}" if len(seen) > 1 else said for each in seen for said in each.damage)
    environment = JobEnvironment("", "", seen[0].device, "", "", __version__, len(seen), facts=seen[0].facts)
    notes = ranks.notes if ranks is not None else ()
    missing = missing_ranks([each.world for each in seen])
    return compose(source, environment, reports, (*problems, *empty, *told, *notes, *missing), ranks)


def _diagnose_fleet(
    found: Gathered, reduced: Sequence[Reduced], read: Callable[[RankFiles], Trace], source: str
) -> Report:
    """The report of more ranks than are looked at in detail: all of them beside one another, and the late one, the
    first, the slowest and a usual one whole."""
    numbers = {each.summary.rank: each.number for each in reduced if each.summary is not None}
    told = tuple(said for each in reduced for said in each.told)
    if not numbers:
        raise NothingMeasuredError("trace-without-steps", told[0] if told else "There is no trace: no step.")
    summaries = [each.summary for each in reduced if each.summary is not None]
    comparison = compare(summaries)
    chosen = telling(comparison) if comparison is not None else tuple(numbers)
    traces = [(numbers[rank], read(found.ranks[numbers[rank]])) for rank in chosen]
    seen = [_look(trace, find_steps(trace), number, detailed=True) for number, trace in traces]
    ranks = located(comparison, {each.rank: each.case for each in seen})
    reports = tuple(_judge_trace(each, beside(each.case, each.rank, ranks)) for each in seen)
    environment = JobEnvironment("", "", seen[0].device, "", "", __version__, len(summaries), facts=seen[0].facts)
    notes = ranks.notes if ranks is not None else ()
    missing = missing_ranks([summary.world for summary in summaries])
    return compose(source, environment, reports, (*found.problems, *told[:MOST_TOLD], *notes, *missing), ranks)


def _look(trace: Trace, steps: FoundSteps, number: int, *, detailed: bool) -> _Seen:
    device = device_of(trace)
    looked = look_at_trace(trace, steps.boundaries, known(device), how=steps.how)
    rank = trace.rank if trace.rank is not None else number
    warm_up = looked.case.step.warm_up
    return _Seen(
        name=f"rank {rank}",
        rank=rank,
        case=looked.case,
        summary=summarise(trace, looked.boundaries, looked.windows, looked.breakdown, rank=rank),
        walls=tuple(looked.whole.wall.tolist()),
        device=device,
        world=trace.world_size,
        damage=trace.damage.sentences,
        facts=facts_of_trace(trace),
        series=series_of_trace(looked.whole, warm_up),
        step_view=step_view_of_trace(trace, looked.boundaries, looked.windows, warm_up) if detailed else None,
        owners=owned_in_trace(trace, steps.boundaries, steps.how) if detailed else None,
        traces=traces_of(trace),
    )


def _judge_trace(seen: _Seen, case: Case) -> ProcessReport:
    late = tuple(index >= case.step.warm_up for index in range(len(seen.walls)))
    judged = _judge(seen.name, seen.rank, case, None, seen.walls, late, seen.damage)
    return replace(
        judged, series=seen.series, step_view=seen.step_view, memory_by_owner=seen.owners, traces=seen.traces
    )


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
    found = bottleneck(case, examination.findings)
    verdict = Verdict(found.name, found.sentence, found.share)
    absent, failed = examination.not_examined, examination.failed
    return ProcessReport(
        name, rank, case, verdict, examination.findings, absent, failed, cost, durations, steady, notes
    )


def _case(
    recording: Recording,
    process: Process,
    layout: Layout,
    recorded: RecordedBreakdown,
    machine: Machine | None,
    on_host: int,
) -> Case:
    case = assemble(
        process,
        layout,
        breakdown=recorded.breakdown,
        operators=recorded.operators,
        recompute=recorded.recompute,
        telemetry=recording.telemetry,
        machine=machine,
        trainers_on_host=on_host,
        in_operators=operator_time(recorded),
    )
    return with_memory(with_recorded_device(case, recorded, machine), process, layout.timeline)


def _too_few(recording: Recording, seen: int) -> NothingMeasuredError:
    return NothingMeasuredError(
        "too-few-steps",
        f"{seen} training steps were seen, and an account needs {LEAST_STEPS} behind the warm-up: let it run longer. "
        f"What was recorded is in {recording.path}.",
    )
