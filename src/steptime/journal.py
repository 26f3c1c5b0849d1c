"""Journal: fixed-size records that the probe appends while the user's job runs.

One law: standard library only, because the probe writes it inside the user's process. `steptime.recording` reads it.
The layout is documented in docs/recording-format.md; changing it requires a higher FORMAT_VERSION, a new kind of record
does not.

A record is an interval on the host's monotonic clock (`time.perf_counter_ns`, shared by all processes of a Linux host):
kind, flags, thread number, identity, start and end in nanoseconds. The meaning of an identity depends on the kind: a
top module, an optimizer, a loader's iterator, a source line (see the comments below). Intervals are appended when they
end, so a child comes before its parent. A job killed at any instant leaves whole records and at most one truncated one
at the end, which readers drop."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from enum import IntEnum, IntFlag

FORMAT_VERSION = 1
RECORD = struct.Struct("<BBHIqq")
"""Layout of a record: kind, flags, thread, identity, start ns, end ns; 24 bytes, little-endian."""
SPAWNED = 1 << 31
"""Bit in loader.bin for an identity that is the loader's random base seed (`LoaderFacts.seed`) instead of its number,
which a spawned worker does not know."""
BUSY_PARTS = 254
"""Scale of the flags of FETCH and COLLATE: 0 if the CPU time was not measured, else 1 + the number of 254ths of the
interval in which it was running or runnable on a CPU."""
UNOPENED_RECORDS = 2048
"""Records that are kept before the first sign of training."""
WORDS = 3
"""Number of 64-bit integers per record: its head (kind, flags, thread, identity), start and end."""
FLUSH_NANOSECONDS = 250_000_000
"""Longest time between two writes, ns, so that a killed job loses less than the second that users would notice."""
WRITING_SHARE, LONGEST_WAIT = 200, 900_000_000
"""Bounds on the time spent writing: at most a 200th of the time, as long as waits stay below LONGEST_WAIT (ns). Opening
and closing a remote file takes milliseconds."""

NEWEST = 64
"""Number of written records that are kept in memory."""

EARLY_WINDOW = 1
"""Number of the profiler's window that is taken before there are steady steps, for a job that ends soon."""


class Kind(IntEnum):
    """Kind of a journal record. Values are part of the format: never reuse one."""

    LOADER_NEXT = 1
    """Call of a DataLoader iterator's __next__. identity: iterator; thread high byte unused; flags: see
    Flag.EXHAUSTED."""
    LOADER_START = 2
    """Construction of a DataLoader iterator until its first __next__ (workers start). identity: iterator."""
    FETCH = 3
    """Reading of the items of one batch (dataset.__getitem__…). In loader.bin: thread = worker id, see SPAWNED. For
    batches that the training process makes itself in under half a millisecond, only a sample: at least five per
    second."""
    COLLATE = 4
    """Collating (and, in the main process, pinning) one batch. In loader.bin: thread = worker id."""
    QUEUE = 5
    """Wait of a worker for an index (start to end); in the main process a sample: start = time, end = number of ready
    batches."""
    FORWARD = 6
    """Call of a top module. identity: top module."""
    BACKWARD = 7
    """Call of torch.autograd.backward, or of torch.autograd.grad with Flag.PARTIAL."""
    OPTIMIZER_STEP = 8
    """Call of Optimizer.step, outermost or nested. identity: optimizer."""
    SCALER_STEP = 9
    """Call of GradScaler.step, which may or may not contain an OPTIMIZER_STEP. identity: optimizer."""
    ZERO_GRAD = 10
    """Call of Optimizer.zero_grad. identity: 0."""
    GARBAGE = 11
    """Run of Python's garbage collector, in any thread. identity: 0."""
    COMPILE = 12
    """Tracing and compiling by TorchDynamo."""
    CHECKPOINT = 13
    """Call of torch.save."""
    LINE = 14
    """Time in which a line of the user's code was the innermost traced line. identity: line (facts: `code`, base + line
    number)."""
    MEMORY = 15
    """Sample of memory. start: time. end: bytes. identity: 1 resident set, 2 device allocated, 3 device reserved, 4
    allocator retries (a count), 5 device allocations by the driver (a count), 6 and 7 peaks of allocated and reserved
    device memory so far, as the allocator counts them (since the job last reset them)."""
    BOUNDARY = 17
    """Boundary of a step while the always-on timers are off (start = end)."""
    UNTIMED = 18
    """Time in which the always-on timers were off: only BOUNDARY records inside."""
    PROFILED = 19
    """Time in which torch's profiler was recording. identity: trace number (facts: `trace`)."""
    DISCOVERY = 20
    """Time in which the Python profile function was on, to find top modules and call sites."""
    LINES = 21
    """Time in which the line timeline was on."""
    PAUSE = 22
    """Time in which the probe itself held the user's thread (profiler start, stop, export): belongs to no step."""
    TRANSFER = 23
    """Host-to-device copy that the probe saw in the discovery steps. identity: site."""
    GRADIENT_NORM = 24
    """Sample of the gradient norm. start: time. end: the norm of the gradients that an update has used, as the bits of
    a 32-bit float."""
    THINNED = 25
    """Steps that were dropped from the recording of a long run, from the end of one to the end of another. identity:
    number of steps that ended in between."""


class Flag(IntFlag):
    """Flag of a record, a property of its interval (for FETCH and COLLATE see BUSY_PARTS)."""

    EXHAUSTED = 1
    """LOADER_NEXT: it ended with an exception (usually StopIteration)."""
    GRADIENT = 1
    """FORWARD: gradients were enabled at entry."""
    TRAINING = 2
    """FORWARD: the top module was in training mode."""
    PARTIAL = 1
    """BACKWARD: it was torch.autograd.grad."""
    ANOMALY = 4
    """BACKWARD: anomaly detection was on."""
    DETERMINISTIC = 8
    """BACKWARD: deterministic algorithms were on."""
    PROFILER = 16
    """BACKWARD: another tool's torch profiler was on."""
    UNCHANGED = 32
    """BACKWARD, without optimizers: parameters are what they were at the pass before."""
    STACKS = 1
    """PROFILED: with Python stacks (slower; not for timing)."""
    SLOW = 1
    """THINNED: the steps after it, up to the next one, were kept because they are slow, so they are no random
    sample."""


def busy_flags(worked: int, elapsed: int) -> int:
    """Flags of a FETCH or COLLATE with measured CPU time, from two times in ns (see BUSY_PARTS)."""
    return 1 + max(0, min(BUSY_PARTS, -(-worked * BUSY_PARTS // elapsed))) if elapsed > 0 else 0


def head(kind: int, flags: int, thread: int, identity: int) -> int:
    """First eight bytes of a record as one signed integer."""
    return kind | flags << 8 | thread << 16 | (identity ^ SPAWNED) - SPAWNED << 32


def open_apart(path: str) -> int:
    """Opens one of steptime's files for appending, with a descriptor above those of the standard streams. If the job
    had closed one of these, its next output there would go into the file. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def append_to(path: str, data: bytes) -> int:
    """Appends to one of steptime's files; returns the ns until the next write is due. Raises OSError.

    The file is closed again each time. A job may close descriptors that it did not open (daemons do), and the next file
    that it opens gets the number. A descriptor kept open here would then write into that file."""
    start = time.perf_counter_ns()
    file = open_apart(path)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    finally:
        os.close(file)
    return min(LONGEST_WAIT, WRITING_SHARE * (time.perf_counter_ns() - start))


class Journal:
    """Journal of a process: appends records in memory, and writes them to a file every quarter of a second of job time,
    or every half second if few boundaries are reported (`probe.patches.FastPath`).

    Until `open` it only keeps the newest records, so that a process that never trains leaves no file. Any thread may
    append, even the garbage collector's callback in the middle of an append. Records are in one permanent list; adding
    three integers to it and taking them from it is one step of the interpreter. Integers, because kept tuples would
    count towards the next run of the job's garbage collector. Raises OSError if the file cannot be opened or written
    (no room, not writable): the probe then switches itself off."""

    def __init__(self) -> None:
        self._path = ""
        self.records: list[int] = []
        self.flush_at = 0
        self.readers: list[Callable[[list[int]], object]] = []
        """Callbacks that receive the written records, in whichever thread writes."""
        self._flushing = threading.Lock()
        self.newest: list[int] = []
        """The last records that were written."""
        self._counted = self._written = self._uncounted = 0

    def open(self, path: str) -> None:
        """Creates the file; earlier records are written with the next flush."""
        append_to(path, b"")
        self._path = path

    def append(self, kind: int, flags: int, thread: int, identity: int, start: int, end: int) -> None:
        """Appends an interval that has just ended; writes the records if the last write is long ago."""
        self.records.extend((head(kind, flags, thread, identity), start, end))
        if end > self.flush_at:
            self.flush_at = end + FLUSH_NANOSECONDS  # now: the collector may append in the middle of it
            self.flush_at = end + max(FLUSH_NANOSECONDS, self.flush())

    def sample(self, kind: int, identity: int, time: int, value: int) -> None:
        """Appends a sample (MEMORY, QUEUE or GRADIENT_NORM), whose second time is a value."""
        self.records.extend((head(kind, 0, 0, identity), time, value))

    def count(self, head: int) -> int | None:
        """Number of records with this head since the first call for it; a call for another head restarts the count.
        Returns None while another thread is writing."""
        if not self._flushing.acquire(blocking=False):
            return None
        try:
            if head != self._counted:
                self._counted, self._written, self._uncounted = head, 0, len(self.records)
            return self._written + self.records[self._uncounted :: WORDS].count(head)
        finally:
            self._flushing.release()

    def flush(self) -> int:
        """Writes the records in memory to the file, and returns what `append_to` does, or 0; a concurrent call does
        nothing. Whole records stay whole as far as the file system permits."""
        if not self._flushing.acquire(blocking=False):
            return 0
        try:
            if not self._path:
                del self.records[: -WORDS * UNOPENED_RECORDS]
                return 0
            count = len(self.records)
            taken = self.records[:count]
            if self._counted:
                self._written += taken[self._uncounted :: WORDS].count(self._counted)
                self._uncounted = max(0, self._uncounted - count)
            data = struct.pack(f"<{count}q", *taken)
            del self.records[:count]
            self.newest = taken[-WORDS * NEWEST :]
            for read in self.readers:
                read(taken)
            return append_to(self._path, data)
        finally:
            self._flushing.release()

    def close(self) -> None:
        """Writes the remaining records and ends the journal."""
        if self._path:
            self.flush()
            self._path = ""

    def forget(self) -> None:
        """Drops the parent's records, file and lock, in a forked child."""
        self._path, self._flushing = "", threading.Lock()
        self.records.clear()
