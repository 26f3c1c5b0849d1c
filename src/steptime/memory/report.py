"""Memory report for a path: a snapshot, a trace with memory events, or a recording."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from steptime.analysis.layout import lay_out
from steptime.analysis.memory_samples import CPU_PLACE, Growth, growths
from steptime.analysis.trace_steps import find_steps
from steptime.errors import NothingMeasuredError
from steptime.memory.lives import AllocationHistory, histories, histories_of_trace
from steptime.memory.snapshot import is_snapshot, read_snapshot
from steptime.memory.triage import MemoryTriage, triage
from steptime.quantities import SourceLine
from steptime.recording.load import load_process, look_into, name_of, place
from steptime.recording.recording import Process
from steptime.report.compose import confirming
from steptime.trace.cache import read_remembered
from steptime.trace.gather import is_traces
from steptime.trace.reader import DEFAULT_MAX_SIZE

NO_MEMORY_EVENTS = (
    "holds no memory events with addresses: record it with torch.profiler.profile(profile_memory=True, "
    "with_stack=True), or take a snapshot with torch.cuda.memory._dump_snapshot"
)


@dataclass(frozen=True, slots=True)
class ReferenceHolder:
    """Python object that holds more tensors after every step. tensors: number of tensors by which it grows per step;
    bytes: their size, per step. graph: True if it also keeps autograd's graph alive."""

    kind: str
    name: str
    source: SourceLine | None
    tensors: float
    bytes: float
    graph: bool
    process: str = ""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Result of `steptime memory` for one path. source: that path. devices: memory of each device, the one with the
    most memory first. growth: growth over the steps of a recording, by process and kind of memory. holders: objects
    that hold the memory which the steps leave. next_command: command for the reader to paste."""

    source: str
    devices: tuple[MemoryTriage, ...]
    growth: tuple[Growth, ...] = ()
    holders: tuple[ReferenceHolder, ...] = ()
    next_command: str = ""
    problems: tuple[str, ...] = ()


def triage_path(
    path: Path, *, capacity: int | None = None, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True
) -> MemoryReport:
    """Memory report of a snapshot (pickle, JSON), a trace, or a recording. capacity: bytes of the device, to compute
    what fits. Raises SnapshotError, TraceError, RecordingError as the readers do, NothingMeasuredError if nothing is
    found."""
    if path.is_dir() and not is_traces(str(path)):
        return _of_recording(path, capacity, max_size)
    if is_snapshot(path) or not is_traces(str(path)):
        found = histories(read_snapshot(path))
    else:
        found = _of_trace(path, max_size, cache)
    if not found:
        raise NothingMeasuredError("memory-nothing", f"{path} {NO_MEMORY_EVENTS}.")
    following = f"steptime memory {shlex.quote(str(path))} -o memory.md"
    return MemoryReport(str(path), tuple(triage(each, capacity=capacity) for each in found), next_command=following)


def _of_trace(path: Path, max_size: int, cache: bool) -> tuple[AllocationHistory, ...]:
    trace = read_remembered(path, max_size=max_size, cache=cache)
    steps = find_steps(trace)
    return histories_of_trace(trace, steps.boundaries, steps.how)


def _of_recording(path: Path, capacity: int | None, max_size: int) -> MemoryReport:
    source, contents = str(path), look_into(path)
    looked = []
    for folder in contents.folders:  # of one process its journal and traces are forgotten before the next one is read
        process, problems = load_process(folder, contents.manifest)
        ranks = len(contents.folders)
        looked.append((place(process), _of_process(process, problems, capacity, max_size, ranks)))
    reports = [report for _, report in sorted(looked, key=lambda each: each[0])]
    devices = [device for report in reports for device in report.devices]
    devices.sort(key=lambda each: (each.failure is None, -each.reserved_peak))
    growth = tuple(found for report in reports for found in report.growth)
    holders = tuple(holder for report in reports for holder in report.holders)
    if not devices and not growth:
        raise NothingMeasuredError(
            "memory-nothing",
            f"{source} has no memory samples, memory events or snapshot: the job was too short, or ran with "
            "--no-profile.",
        )
    following = f"steptime memory {shlex.quote(source)} -o memory.md"
    leaks = holders or any(each.leaks for each in devices) or any(each.leaks for each in growth)
    if leaks and contents.manifest.command:
        following = f"change the line, then: {confirming(source, shlex.join(contents.manifest.command))}"
    elif any(each.savings for each in devices):
        following = f"steptime try --goal memory {shlex.quote(source)}"
    problems = (*contents.problems, *(problem for report in reports for problem in report.problems))
    return MemoryReport(source, tuple(devices), growth, holders, following, problems)


def _of_process(
    process: Process, problems: tuple[str, ...], capacity: int | None, max_size: int, ranks: int
) -> MemoryReport:
    name = name_of(process)
    growth = growths(process, lay_out(process), name)
    limit = process.settings.memory_limit if process.settings is not None else None
    samples = max((each.batch_size for each in process.loaders if each.batch_size is not None), default=None)
    devices = tuple(
        triage(each, capacity=capacity or (limit if each.device != CPU_PLACE else None), ranks=ranks, samples=samples)
        for each in _histories(process, max_size)
    )
    keeps = not growth or any(each.leaks for each in growth)  # what grew for eight steps may be emptied every ten
    holders = tuple(
        ReferenceHolder(
            leak.kind, leak.name, leak.site, leak.tensors, leak.bytes, bool(leak.graphs or leak.nodes), name
        )
        for leak in process.leaks
        if keeps
    )
    return MemoryReport(name, devices, growth, holders, problems=problems)


def _histories(process: Process, max_size: int) -> list[AllocationHistory]:
    """Histories of a process: from its snapshots, else from the memory events of its traces."""
    found = [each for path in sorted(process.folder.glob("memory-*.pickle")) for each in histories(read_snapshot(path))]
    if found:
        return found
    for facts in reversed(process.traces):
        paths = (process.folder / facts.path, process.folder / f"{facts.path}.gz")
        path = next((each for each in paths if each.exists()), None)
        if path is not None and facts.memory:
            found += _of_trace(path, max_size, cache=False)
    return found
