"""Recognition of profilers' databases and documents, and of the processes in them."""

from __future__ import annotations

from pathlib import Path

from steptime.errors import TraceError
from steptime.trace import nsight, rocpd
from steptime.trace.reader import DEFAULT_MAX_SIZE
from steptime.trace.rocprof_json import is_of_rocprof, processes_in, read_rocprof
from steptime.trace.sqlite import is_database, opened
from steptime.trace.table import Trace

PROCESSES_AS_RANKS = "{} does not contain ranks: its {} processes with device work count as ranks, by process ID."


def holds_processes(path: Path) -> bool:
    """True if a file may hold several processes, numbered by its profiler: a database, or a document of rocprofv3."""
    return is_database(path) or is_of_rocprof(path)


def writer_of(path: Path) -> str:
    """Name of the profiler that wrote the file; "" if it is unknown or the file is damaged."""
    if not is_database(path):
        return "rocprof" if is_of_rocprof(path) else ""
    try:
        with opened(path) as database:
            if nsight.is_of_nsight(database):
                return "Nsight Systems"
            return "rocprof" if rocpd.is_of_rocm(database) else ""
    except TraceError:
        return ""


def processes_of(path: Path, max_size: int = DEFAULT_MAX_SIZE) -> tuple[int, ...]:
    """Numbers of the processes in a file that used a device, in order; of all its processes if none did. max_size: most
    bytes of a document. Raises TraceError (trace-not-a-trace, trace-empty, trace-unreadable, trace-too-large)."""
    if not is_database(path) and is_of_rocprof(path):
        return processes_in(path, max_size)
    with opened(path) as database:
        if nsight.is_of_nsight(database):
            return nsight.processes_of(database, path)
        if rocpd.is_of_rocm(database):
            return rocpd.processes_of(database, path)
    raise TraceError(
        "trace-not-a-trace",
        f"{path} is a database of an unknown profiler. Expected a table {nsight.KERNELS} or {nsight.CALLS} "
        f"(nsys export -t sqlite), {rocpd.DISPATCHES}… (rocprofv3) or {rocpd.CALLS} (rocmProfileData).",
    )


def read_database(path: Path, process: int, *, max_size: int) -> Trace:
    """Trace of one process in a profiler's database or document. max_size: most bytes, unpacked. Raises TraceError."""
    if not is_database(path):
        return read_rocprof(path, process, max_size=max_size)
    with opened(path, max_size) as database:
        read = nsight.read_process if nsight.is_of_nsight(database) else rocpd.read_process
        return read(database, path, process)
