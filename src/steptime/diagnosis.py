"""Diagnosis: from a path to a report. Each rank is analysed by itself, then all are combined.

Of more than DETAILED_RANKS ranks, all are first reduced to summaries, and only the most informative are analysed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steptime.advice.companion_evidence import reported_counters, with_compile_logs, with_counters
from steptime.advice.rank_evidence import with_straggler_site
from steptime.advice.trace_evidence import look_at_trace
from steptime.analysis.breakdown import device_of
from steptime.analysis.device_activity import nothing_in
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.stragglers.comparison import RankComparison, missing_ranks
from steptime.analysis.stragglers.fleet import (
    LEAST_STEPS,
    LOCAL,
    Reduced,
    ReducedProcess,
    hosts,
    reduce_all,
    reduce_processes,
)
from steptime.analysis.stragglers.straggler import compare, informative, with_link
from steptime.analysis.stragglers.summary import RankSummary
from steptime.analysis.timeline import Mode
from steptime.analysis.trace_steps import whole_steps
from steptime.analysis.what_if.elsewhere import elsewhere
from steptime.errors import NothingMeasuredError, RecordingError, UsageError
from steptime.machine.datasheet import NAMES, look_up
from steptime.machine.machine import Machine
from steptime.quantities import format_count
from steptime.rank_result import RankResult, analyse_process, analyse_trace
from steptime.recording.inventory import COMPILE_LOGS
from steptime.recording.load import load_process, load_whole, look_into, place
from steptime.recording.recording import Recording
from steptime.remote import fetched
from steptime.report import json
from steptime.report.compose import compose, of_copies, with_trials
from steptime.report.report import Report
from steptime.report.sweep import SweptBatch
from steptime.trace.compile_logs import find_logs, read_compile_logs
from steptime.trace.gather import RankFiles, batch_sizes, gather, is_traces, mixed
from steptime.trace.links import linked
from steptime.trace.nsight_compute import counter_files, find_counters, read_counters
from steptime.trace.reader import DEFAULT_MAX_SIZE
from steptime.trace.table import Trace
from steptime.trace.windows import read_rank
from steptime.trials.results import is_trial, newest_trial, read_results

DETAILED_RANKS = 32
"""Most ranks that are analysed completely; of more, the most informative ones."""
NOTHING_RECORDED = "record it with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] around whole steps."
SWITCHED_OFF = "switched off: "
"""Prefix of the note of a probe that has failed and left the job alone."""
MOST_PROBLEMS = 8
"""Most sentences about single ranks of a large job."""


@dataclass(frozen=True, slots=True)
class CompanionFiles:
    """Files of other tools about the same job. compile_logs: torch.compile's folder; counters: Nsight Compute's CSV, or
    a folder of these. None for the files in the recording, or next to the traces if they have a kernel in common."""

    compile_logs: Path | None = None
    counters: Path | None = None


NO_COMPANIONS = CompanionFiles()


def diagnose_paths(
    paths: Sequence[str],
    *,
    max_size: int = DEFAULT_MAX_SIZE,
    cache: bool = True,
    engine: str | None = None,
    workers: int | None = None,
    pictures: bool = True,
    companions: CompanionFiles = NO_COMPANIONS,
) -> Report:
    """Report of a recording, of traces (of one job), or of a report that was saved as JSON.

    max_size: most bytes of JSON that are read per rank's traces. cache: True to cache large traces. engine: place where
    ranks are reduced (`stragglers.fleet`: LOCAL or RAY); None: here, one by one, or in worker processes for more than
    DETAILED_RANKS. workers: number of the engine's, by default one per CPU. pictures: True to include a step's timeline
    and memory over time in a trace's report, which no text shows and which take a third of the time. companions: files
    of other tools on the same job."""
    first = Path(paths[0])
    if len(paths) == 1 and json.is_report(first):
        return json.read_file(first, paths[0])
    if len(paths) == 1 and is_trial(first):
        recording = read_results(first).plan.recording
        if not recording:
            reason = f"{first} is a judgement by a printed number (--metric): it has no recorded steps to diagnose."
            raise RecordingError("no-recording", reason)
        return with_trials(_diagnose_recording(Path(recording), recording, engine, workers, companions), first)
    if len(paths) == 1 and not is_traces(paths[0]):
        return with_trials(_diagnose_recording(first, paths[0], engine, workers, companions), newest_trial(first))
    folder = next((path for path in paths if Path(path).is_dir() and not is_traces(path)), None)
    if folder is not None:
        raise UsageError(
            "several-recordings",
            f"{folder} is a recording, and a diagnosis takes one recording alone. Compare several: steptime "
            "compare A B",
        )
    source, found = " ".join(map(shlex.quote, paths)), gather(paths, max_size=max_size)
    if engine is None and len(found.ranks) <= DETAILED_RANKS:
        traces = (linked(read_rank(rank, max_size=max_size, cache=cache)) for rank in found.ranks)
        return diagnose_traces(_at_one_time(traces), source, found.problems, pictures=pictures, companions=companions)
    reduced = reduce_all(found.ranks, engine=engine or LOCAL, workers=workers, max_size=max_size, cache=cache)
    summaries, problems = _summaries(reduced), _problems(reduced)
    numbers = {each.summary.rank: each.number for each in reduced if each.summary is not None}
    comparison = compare(summaries)
    chosen = informative(comparison) if comparison is not None else tuple(numbers)
    read = ((numbers[rank], read_rank(found.ranks[numbers[rank]], max_size=max_size, cache=cache)) for rank in chosen)
    results = [result for number, trace in read if (result := analyse_trace(trace, number, detailed=pictures))]
    if not results:
        raise _without_steps(problems)
    return combine(results, source, (*found.problems, *problems[:MOST_PROBLEMS]), summaries, companions)


def _without_steps(problems: Sequence[str]) -> NothingMeasuredError:
    reason = problems[0] if problems else "The paths contain no trace with a step."
    return NothingMeasuredError("trace-without-steps", reason)


def _at_one_time(traces: Iterable[Trace]) -> Iterator[Trace]:
    """Traces of the ranks of a job. Raises TraceError (mixed-traces) for one that does not overlap the first in time,
    unless both files say that they belong to one distributed job, whose hosts' clocks may differ."""
    first: Trace | None = None
    for trace in traces:
        if first is None and len(trace.events):
            first = trace
        elif first is not None and len(trace.events) and None in (first.world_size, trace.world_size):
            start = max(each.events.start.min() for each in (first, trace))
            if start >= min(each.events.end.max() for each in (first, trace)):
                raise mixed(f"{first.path} and {trace.path} were recorded at different times")
        yield trace


def with_elsewhere(
    report: Report, path: Path, devices: Sequence[str], link: float, *, max_size: int, cache: bool
) -> Report:
    """Report of one trace, or of a recording (its first process), with the step predicted on other devices. devices:
    names in the table of datasheets. link: speed of the link, as a multiple of the present one. Raises UsageError for a
    device that the table does not have, and NothingMeasuredError if nothing can be replayed."""
    first, recorded = report.processes[0], path.is_dir()
    if recorded and not first.traces:
        raise NothingMeasuredError(
            "trace-without-steps",
            f"{path} has no profiled step. Record the job again, longer and without --no-profile.",
        )
    (rank,) = gather([first.traces[0].path if recorded else str(path)], max_size=max_size).ranks
    trace = read_rank(rank, max_size=max_size, cache=cache)
    here = look_up(device_of(trace))
    if devices and here is None:
        message = f"--on compares datasheets, and steptime has none for {device_of(trace)}, the device of {path}."
        raise UsageError("unknown-device", message)
    trace, whole = whole_steps(trace)
    steps = look_at_trace(trace, whole.boundaries, here).steps
    wanted: list[Machine | None] = [*map(_datasheet, devices)] or [None]
    usual = first.case.step.duration.value if recorded else None
    found = tuple(each for device in wanted if (each := elsewhere(steps, device, link, usual)) is not None)
    if not found or first.case.replay is None:
        message = f"{path} cannot be replayed: it has no step with kernels and the CPU operators that launched them."
        raise NothingMeasuredError("trace-without-steps", message)
    case = replace(first.case, replay=replace(first.case.replay, elsewhere=found))
    return replace(report, processes=(replace(first, case=case), *report.processes[1:]))


def _datasheet(name: str) -> Machine:
    found = look_up(name)
    if found is None:
        message = f"steptime has no datasheet for {name}. Known devices: {', '.join(NAMES)}."
        raise UsageError("unknown-device", message)
    return found


def read_sweep(paths: Sequence[str], *, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True) -> tuple[SweptBatch, ...]:
    """Traces of one job at several batch sizes, by batch size; () if the files are no such sweep."""
    points = []
    for batch, file in batch_sizes(paths).items():
        result = analyse_trace(read_rank(RankFiles(0, (file,)), max_size=max_size, cache=cache), 0, detailed=False)
        if result is not None:
            points.append(SweptBatch(batch, result.own.case.step.duration, result.environment.device))
    return tuple(points)


def diagnose_anywhere(paths: Sequence[str], **options: Any) -> Report:
    """Report as by `diagnose_paths`, with its options, also of URLs, whose content is copied here temporarily."""
    with fetched(paths) as local:
        report = diagnose_paths(local, **options)
    if local == tuple(paths):
        return report
    return replace(of_copies(report, " ".join(paths)), next_command=f"steptime report {paths[0]} -o report.md")


def diagnose_traces(
    traces: Iterable[Trace],
    source: str,
    problems: tuple[str, ...] = (),
    *,
    pictures: bool = True,
    companions: CompanionFiles = NO_COMPANIONS,
) -> Report:
    """Report of traces, one for each rank, analysed one by one. problems: sentences on what was damaged or left out
    while the traces were collected. Raises NothingMeasuredError if none of the traces has a step."""
    results, empty = list[RankResult](), list[str]()
    for number, trace in enumerate(traces):
        result = analyse_trace(trace, number, detailed=pictures and number < DETAILED_RANKS)
        if result is not None:
            results.append(result)
        else:
            empty.append(f"{trace.path} {nothing_in(trace) or 'holds no step'}: {NOTHING_RECORDED}")
    if not results:
        raise _without_steps(empty)
    if len(results) > 1:
        results = [
            replace(each, problems=tuple(f"{each.own.name}: {message}" for message in each.problems))
            for each in results
        ]
    return combine(results, source, (*problems, *empty), companions=companions)


def _diagnose_recording(
    path: Path, source: str, engine: str | None, workers: int | None, companions: CompanionFiles
) -> Report:
    contents = look_into(path)
    own = path / COMPILE_LOGS
    companions = replace(companions, compile_logs=companions.compile_logs or (own if own.is_dir() else None))
    if engine is None and len(contents.folders) <= DETAILED_RANKS:
        return diagnose(load_whole(contents), source, companions)
    reduced = reduce_processes(contents, engine=engine or LOCAL, workers=workers)
    comparison = compare(_summaries(reduced))
    if comparison is None:
        return diagnose(load_whole(contents), source, companions)
    folders = {each.facts.rank: each.folder for each in reduced if each.summary is not None}
    chosen = (load_process(folders[rank], contents.manifest)[0] for rank in informative(comparison))
    problems = (*contents.problems, *_problems(reduced)[:MOST_PROBLEMS])
    processes = tuple(sorted(chosen, key=place))
    recording = Recording(contents.path, contents.manifest, processes, contents.telemetry, problems)
    on_host = hosts(reduced)
    results = [
        analyse_process(recording, process, lay_out_whole(process), on_host=on_host[process.facts.host], detailed=True)
        for process in recording.processes
    ]
    results = [replace(result, problems=()) for result in results]  # the map step has reported them
    return combine(results, source, recording.problems, _summaries(reduced), companions)


def diagnose(recording: Recording, source: str, companions: CompanionFiles = NO_COMPANIONS) -> Report:
    """Report of a recording. Raises NothingMeasuredError if no process took enough steps."""
    results, seen, on_host = list[RankResult](), 0, hosts(recording.processes)
    laid_out = [(process, lay_out_whole(process)) for process in recording.processes]
    trainers = [(process, layout) for process, layout in laid_out if layout.timeline.mode != Mode.FORWARD]
    for process, layout in trainers or laid_out:  # what only infers counts if nothing trains
        steps = layout.timeline.steps
        seen = max(seen, len(steps.start))
        if steps.steady.sum() >= LEAST_STEPS:
            count, detailed = on_host[process.facts.host], len(results) < DETAILED_RANKS
            results.append(analyse_process(recording, process, layout, on_host=count, detailed=detailed))
    if not results:
        off = [note for process in recording.processes for note in process.notes if note.startswith(SWITCHED_OFF)]
        instead = f"steptime was {off[0].rstrip('.')}." if off else "Train longer."
        raise NothingMeasuredError(
            "too-few-steps",
            f"{'Only ' * bool(seen)}{format_count(seen, 'training step')} {'was' if seen == 1 else 'were'} recorded; a "
            f"breakdown needs {LEAST_STEPS} after warm-up. {instead} The recording is in "
            f"{recording.path}.",
        )
    # Of several programs of one process, or several processes of one rank, what trained longest speaks for it.
    places = list(dict.fromkeys(each.place for each in results))
    results.sort(key=lambda each: (places.index(each.place), -sum(each.own.steady)))
    report = combine(results, source, recording.problems, companions=companions)
    return replace(report, environment=replace(report.environment, ranks=len(recording.processes)))


def _summaries(reduced: Sequence[Reduced | ReducedProcess]) -> list[RankSummary]:
    return [each.summary for each in reduced if each.summary is not None]


def _problems(reduced: Sequence[Reduced | ReducedProcess]) -> tuple[str, ...]:
    return tuple(message for each in reduced for message in each.reported)


def _with_compile_logs(result: RankResult, folder: Path | None) -> RankResult:
    found = folder or (find_logs(Path(result.own.traces[0].path)) if result.own.traces else None)
    if found is None:
        return result
    case = with_compile_logs(result.own.case, read_compile_logs(found, result.own.rank), str(found))
    known = folder is not None or (case.compiler is not None and case.compiler.kernels)
    return replace(result, own=replace(result.own, case=case)) if known else result


def _with_counters(result: RankResult, given: Path | None) -> RankResult:
    near = find_counters(Path(result.own.traces[0].path)) if given is None and result.own.traces else ()
    files = counter_files(given) if given is not None else near
    if not files or not result.own.case.kernels:
        return result
    measured = read_counters(files)
    case = with_counters(result.own.case, measured)
    message = reported_counters(case, len(measured), str(given or files[0]))
    if any(use.counters is not None for use in case.kernels):
        return replace(result, own=replace(result.own, case=case, notes=(*result.own.notes, message)))
    return replace(result, problems=(*result.problems, message)) if given is not None else result


def combine(
    results: Sequence[RankResult],
    source: str,
    problems: tuple[str, ...],
    summaries: Sequence[RankSummary] | None = None,
    companions: CompanionFiles = NO_COMPANIONS,
) -> Report:
    """Report of a job. results: results of its ranks, or of the most informative ones of a large job; processes without
    a rank are not compared. problems: sentences on what was damaged or left out. summaries: summaries of all ranks,
    None for those of the results. companions: as in `diagnose_paths`."""
    results = [_with_compile_logs(each, companions.compile_logs) for each in results]
    results = [_with_counters(each, companions.counters) for each in results]
    ranked = {each.own.rank: each for each in reversed(results) if each.own.rank is not None}
    known = summaries if summaries is not None else [each.summary for each in reversed(ranked.values())]
    compared = with_link(compare(known), results[0].machine)
    ranks: RankComparison | None = with_straggler_site(compared, {rank: each.own.case for rank, each in ranked.items()})
    message = (*problems, *(message for each in results for message in each.problems))
    message += (*(ranks.notes if ranks is not None else ()), *missing_ranks([summary.world for summary in known]))
    environment = replace(results[0].environment, ranks=len(summaries if summaries is not None else results))
    return compose(source, environment, tuple(each.report(ranks) for each in results), message, ranks)
