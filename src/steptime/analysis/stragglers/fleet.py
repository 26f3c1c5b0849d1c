"""Comparison of thousands of ranks: each is read and reduced in a worker, and only summaries are returned.

The map is a function of one rank's files, or of one process of a recording, the same on every engine; the reduce is
`compare`. So memory is one trace per worker and some kilobytes per rank.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from steptime.analysis.layout import lay_out_whole
from steptime.analysis.recorded_breakdown import breakdown_of_process
from steptime.analysis.stragglers.summary import RankSummary, summarise_process, summarise_trace
from steptime.analysis.timeline import Mode
from steptime.clusters import connect, import_ray
from steptime.errors import TraceError
from steptime.machine.datasheet import look_up
from steptime.machine.identity import usable_cpus
from steptime.machine.machine import Machine
from steptime.machine.peaks import FILE_NAME, load_as
from steptime.own_python import own_python
from steptime.recording.load import Contents, load_process
from steptime.recording.recording import Manifest, Process, ProcessFacts, Recording
from steptime.trace.gather import RankFiles
from steptime.trace.reader import DEFAULT_MAX_SIZE
from steptime.trace.windows import read_rank

T = TypeVar("T")
R = TypeVar("R")
LOCAL, RAY = "local", "ray"
AHEAD = 4
"""Ranks in flight per worker of a cluster: enough to keep it busy, few enough to bound the waiting results."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """Summary of a rank, returned by a worker. summary: None if the rank could not be read or has no step. reported:
    sentences on the rank."""

    number: int
    summary: RankSummary | None
    reported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """Files of one rank, for a worker to summarise. number: position among all, used as the rank if the files have
    none."""

    number: int
    files: RankFiles
    max_size: int = DEFAULT_MAX_SIZE
    cache: bool = False


def reduce_rank(task: Task) -> Reduced:
    """Summary of one rank, read from its files. For an unreadable rank, a sentence instead."""
    try:
        trace = read_rank(task.files, max_size=task.max_size, cache=task.cache)
    except TraceError as error:
        return Reduced(task.number, None, (error.sentence,))
    rank = trace.rank if trace.rank is not None else task.number
    summary = summarise_trace(trace, rank)
    if summary is None:
        return Reduced(task.number, None, (f"{trace.path} has no event with a duration, so it has no step.",))
    reported = tuple(f"rank {rank}: {message}" for message in trace.damage.sentences)
    return Reduced(task.number, summary, reported)


def reduce_all(
    ranks: Sequence[RankFiles],
    *,
    engine: str = LOCAL,
    workers: int | None = None,
    max_size: int = DEFAULT_MAX_SIZE,
    cache: bool = False,
) -> tuple[Reduced, ...]:
    """Summaries of all ranks, in their order. workers: processes of the local engine, by default one per CPU. Raises
    UsageError and CommandError if a requested cluster is missing."""
    tasks = [Task(number, files, max_size, cache) for number, files in enumerate(ranks)]
    found = sorted(_mapped(reduce_rank, tasks, engine, workers), key=lambda reduced: reduced.number)
    seen: set[int] = set()
    for index, reduced in enumerate(found):
        if reduced.summary is not None and reduced.summary.rank in seen:
            message = f"rank {reduced.summary.rank} appears twice; steptime skipped one of them."
            found[index] = replace(reduced, summary=None, reported=(*reduced.reported, message))
        elif reduced.summary is not None:
            seen.add(reduced.summary.rank)
    return tuple(found)


def _mapped(function: Callable[[T], R], tasks: Sequence[T], engine: str, workers: int | None) -> Iterator[R]:
    """Yields the function's result for each task, in any order; both must be picklable. Raises as `reduce_all` does."""
    return (_ray if engine == RAY else _local)(function, tasks, workers)


def _local(function: Callable[[T], R], tasks: Sequence[T], workers: int | None) -> Iterator[R]:
    """Yields results from processes of this machine; no process for a single worker. They are spawned, since a fork of
    a threaded parent may hang."""
    count = min(workers or usable_cpus(), len(tasks))
    if count <= 1:
        yield from map(function, tasks)
        return
    shares = [tasks[number::count] for number in range(count)]
    with ThreadPoolExecutor(count) as threads:
        for found in threads.map(partial(_in_a_process, function), shares):
            yield from found


def _in_a_process(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Results of the function for each task, computed in a separate Python. `multiprocessing` is not used, because it
    would start its pool in the current folder. Libraries get one thread each, because the workers share the CPUs."""
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        own_python(__name__), input=pickle.dumps((function, tasks)), stdout=subprocess.PIPE, check=True,
        env={**alone, **os.environ},
    )  # fmt: skip
    found: list[R] = pickle.loads(done.stdout)
    return found


def _ray(function: Callable[[T], R], tasks: Sequence[T], workers: int | None) -> Iterator[R]:
    """Yields results from a Ray cluster, with a CPU per task. All its machines must see the files."""
    ray: Any = import_ray("--engine ray")
    ours = connect(ray)
    try:
        remote = ray.remote(function)
        most = AHEAD * (workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
        waiting: list[Any] = []
        for task in tasks:
            if len(waiting) >= most:
                done, waiting = ray.wait(waiting, num_returns=1)
                yield ray.get(done[0])
            waiting.append(remote.options(num_cpus=1, max_retries=2).remote(task))
        for reference in waiting:
            yield ray.get(reference)
    finally:
        if ours:
            ray.shutdown()


LEAST_STEPS = 3
"""Fewest steady steps of a process for a summary."""


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """Folder of one process, for a worker to summarise. machine: peaks measured next to the recording, if any."""

    folder: Path
    manifest: Manifest
    machine: Machine | None


@dataclass(frozen=True, slots=True)
class ReducedProcess:
    """Summary of a process, returned by a worker. steps: number of its steps; steady: number of steady ones. trains:
    False if it only infers. summary: None without a rank or with too few steps. reported: sentences on the process."""

    folder: Path
    facts: ProcessFacts
    steps: int
    steady: int
    trains: bool
    summary: RankSummary | None
    reported: tuple[str, ...] = ()


def reduce_process(task: ProcessTask) -> ReducedProcess:
    """Summary of one process, read from its folder. Damage becomes a sentence."""
    process, problems = load_process(task.folder, task.manifest)
    layout = lay_out_whole(process)
    steps = layout.timeline.steps
    steady, facts = int(steps.steady.sum()), process.facts
    trains = layout.timeline.mode != Mode.FORWARD
    if facts.rank is None or steady < LEAST_STEPS:
        return ReducedProcess(task.folder, facts, len(steps.start), steady, trains, None, problems)
    recorded = breakdown_of_process(process, layout, task.machine or look_up(facts.device_name))
    summary = summarise_process(process, layout, recorded)
    reported = (*problems, *recorded.problems)
    return ReducedProcess(task.folder, facts, len(steps.start), steady, trains, summary, reported)


def reduce_processes(
    contents: Contents, *, engine: str = LOCAL, workers: int | None = None
) -> tuple[ReducedProcess, ...]:
    """Summaries of all processes of a recording, by rank. If some train, those that only infer get none. Raises
    UsageError and CommandError if a requested cluster is missing."""
    machine = load_as(Machine, contents.path / FILE_NAME)
    tasks = [ProcessTask(folder, contents.manifest, machine) for folder in contents.folders]
    found = list(_mapped(reduce_process, tasks, engine, workers))
    found.sort(key=lambda each: (each.facts.rank is None, each.facts.rank or 0, each.facts.pid))
    if any(each.trains and each.steps for each in found):
        found = [each if each.trains else replace(each, summary=None) for each in found]
    # Of several processes of one rank (the job was restarted) the one that trained longest is compared.
    best = {each.facts.rank: each for each in sorted(found, key=lambda each: each.steady) if each.summary is not None}
    for index, each in enumerate(found):
        if each.summary is not None and each is not best[each.facts.rank]:
            message = f"rank {each.facts.rank} appears twice; steptime skipped process {each.facts.pid}."
            found[index] = replace(each, summary=None, reported=(*each.reported, message))
    return tuple(found)


def hosts(found: Iterable[ReducedProcess | Process]) -> Counter[str]:
    """Number of processes on each host; programs that one process ran one after another count once."""
    return Counter(host for host, _ in {each.facts.system_number for each in found})


def machine_of(recording: Recording) -> Machine | None:
    """Peaks of a recording's machine: measured, else from the datasheet; None if there are neither."""
    name = recording.processes[0].facts.device_name if recording.processes else ""
    return load_as(Machine, recording.path / FILE_NAME) or look_up(name)


def _serve() -> None:
    """Main function of the process that `_in_a_process` starts."""
    function, tasks = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps([function(task) for task in tasks]))


if __name__ == "__main__":
    _serve()
