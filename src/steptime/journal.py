"""The journal: fixed records that the probe appends while the user's job runs.

One law: standard library only, because the probe writes it inside the user's process. `steptime.recording`
reads it. The layout is documented in docs/recording-format.md; a change of it raises FORMAT_VERSION.

A record is an interval on the host's monotonic clock (`time.perf_counter_ns`, shared by all processes of a Linux host):
kind, flags, thread number, identity, start and end in nanoseconds. The meaning of an identity depends on the kind: a
top module, an optimizer, a loader's iterator, a source line (see the comments below). Intervals are appended when they
end, so a child is before its parent, and a job killed at any instant leaves whole records and at most one torn one at
the end, which readers drop.
"""

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
"""kind, flags, thread, identity, start ns, end ns: 24 bytes, little-endian."""
SPAWNED = 1 << 31
"""In loader.bin: an identity with this bit is the loader's random base seed (`LoaderFacts.seed`), not its number, as
a spawned worker is not told the number."""
BUSY_PARTS = 254
"""The flags of FETCH and COLLATE are a number: 0 where the CPU time was not measured, else one more than the parts, of
so many, of the interval in which a CPU worked for it or was wanted and not free."""
UNOPENED_RECORDS = 2048
"""Kept before the first sign of training."""
WORDS = 3
"""64-bit integers that a record is kept as: its head (kind, flags, thread, identity), start and end."""
FLUSH_NANOSECONDS = 250_000_000
"""A killed job loses at most what it did in this time: below the second that users would notice."""
WRITING_SHARE, LONGEST_WAIT = 200, 900_000_000
"""Writing takes at most a 200th of the time, as far as LONGEST_WAIT (ns) allows: where a file is far away, opening and
closing it takes milliseconds."""

NEWEST = 64
"""Records kept of those that were written."""

EARLY_WINDOW = 1
"""Number of the profiler's window that is taken before there are steady steps, for a job that ends soon."""


class Kind(IntEnum):
    """Kind of an interval of the journal. Values are part of the format: never reuse one."""

    LOADER_NEXT = 1
    """DataLoader iterator's __next__. identity: iterator; thread high byte unused; flags: see Flag.EXHAUSTED."""
    LOADER_START = 2
    """From the construction of a DataLoader iterator to its first __next__ (workers start). identity: iterator."""
    FETCH = 3
    """Reading the items of one batch (dataset.__getitem__…). In loader.bin: thread = worker id, see SPAWNED. Sample of
    the batches that the training process makes itself in under half a millisecond: at least five in a second."""
    COLLATE = 4
    """Collating (and, in the main process, pinning) one batch. In loader.bin: thread = worker id."""
    QUEUE = 5
    """A worker's wait for an index (start..end), or, in the main process, begin = time and end = batches ready."""
    FORWARD = 6
    """A root module's call. identity: root."""
    BACKWARD = 7
    """torch.autograd.backward, or torch.autograd.grad with Flag.PARTIAL."""
    OPTIMIZER_STEP = 8
    """Optimizer.step, outermost or nested. identity: optimizer."""
    SCALER_STEP = 9
    """GradScaler.step, which may or may not contain an OPTIMIZER_STEP. identity: optimizer."""
    ZERO_GRAD = 10
    """Optimizer.zero_grad. identity: 0."""
    GARBAGE = 11
    """A collection of Python's garbage collector, in whatever thread. identity: 0."""
    COMPILE = 12
    """TorchDynamo tracing and compiling."""
    CHECKPOINT = 13
    """torch.save."""
    LINE = 14
    """A line of the user's code was the innermost traced line. identity: line (facts: `code`, base + line number)."""
    MEMORY = 15
    """A sample. start: time. end: bytes. identity: 1 resident set, 2 device allocated, 3 device reserved,
    4 allocator retries (a count), 5 device allocations by the driver (a count), 6 and 7 the most that was allocated and
    reserved on the device so far, as the allocator counts it (since the job last reset it)."""
    BOUNDARY = 17
    """The boundary of a step while the watch is off (begin = end)."""
    UNWATCHED = 18
    """The watch was off: only BORDER records inside."""
    PROFILED = 19
    """torch's profiler was recording. identity: trace number (facts: `trace`)."""
    DISCOVERY = 20
    """The Python profile function was on, to find root modules and call sites."""
    LINES = 21
    """The line timeline was on."""
    PAUSE = 22
    """The probe itself held the user's thread (profiler start, stop, export): belongs to no step."""
    TRANSFER = 23
    """A host-to-device copy that the probe saw in the discovery steps. identity: site."""
    GRADIENT_NORM = 24
    """A sample. start: time. end: the norm of the gradients that an update has used, as the bits of a 32-bit float."""
    THINNED = 25
    """Steps that were left out of the recording of a long run, from the end of one to the end of another. identity:
    how many ended in between."""


class Flag(IntFlag):
    """Properties of one interval (those of FETCH and COLLATE: see BUSY_PARTS)."""

    EXHAUSTED = 1
    """LOADER_NEXT: ended with an exception (StopIteration as a rule)."""
    GRADIENT = 1
    """FORWARD: gradients were enabled at entry."""
    TRAINING = 2
    """FORWARD: the root was in training mode."""
    PARTIAL = 1
    """BACKWARD: torch.autograd.grad."""
    ANOMALY = 4
    """BACKWARD: anomaly detection was on."""
    DETERMINISTIC = 8
    """BACKWARD: deterministic algorithms were on."""
    PROFILER = 16
    """BACKWARD: somebody else's torch profiler was on."""
    STACKS = 1
    """PROFILED: with Python stacks (slower; not for timing)."""
    SLOW = 1
    """THINNED: the steps behind it, up to the next one, were kept because they are slow: they are no sample."""


def busy_flags(worked: int, elapsed: int) -> int:
    """The flags of a FETCH or COLLATE whose CPU time was measured, from two times in ns (see BUSY_PARTS)."""
    return 1 + max(0, min(BUSY_PARTS, -(-worked * BUSY_PARTS // elapsed))) if elapsed > 0 else 0


def head(kind: int, flags: int, thread: int, identity: int) -> int:
    """The first eight bytes of a record as one signed integer."""
    return kind | flags << 8 | thread << 16 | (identity ^ SPAWNED) - SPAWNED << 32


def open_apart(path: str) -> int:
    """Opens a file of ours to append to, on none of the three descriptors of the standard streams: where the job has
    closed one of them, its next words there would go into our file. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def append_to(path: str, data: bytes) -> int:
    """Appends to a file of ours; returns the ns until the next time that is not too soon. Raises OSError.

    The file is closed again each time. A job may close descriptors that it did not open (daemons do), and the next
    file that it opens gets the number: through a descriptor that we held, our records would go into that file.
    """
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
    """Appends records to a file: in memory first, written out once in a quarter of a second of job time,
    and where few boundaries are told (`probe.patches.FastPath`) every half of one.

    Until `open` it only keeps the newest records: a process that never trains leaves no file.
    Any thread may append, and the garbage collector's callback may in the middle of an append: records are kept in one
    list for ever, to which three integers are added, and from which they are taken, in one step of the interpreter.
    Integers, because a tuple that is kept counts towards the next run of the job's garbage collector.
    Raises OSError when the file cannot be opened or written (no room, not writable): the probe then
    switches itself off.
    """

    def __init__(self) -> None:
        self._path = ""
        self.records: list[int] = []
        self.flush_at = 0
        self.readers: list[Callable[[list[int]], object]] = []
        """Get what is written, too, in whatever thread writes."""
        self._flushing = threading.Lock()
        self.newest: list[int] = []
        """The last records that were written."""
        self._counted = self._written = self._uncounted = 0

    def open(self, path: str) -> None:
        """Makes the file; what was appended so far is written with the next flush."""
        append_to(path, b"")
        self._path = path

    def append(self, kind: int, flags: int, thread: int, identity: int, start: int, end: int) -> None:
        """Appends one interval that has just ended; writes the records out when the last write is long ago."""
        self.records.extend((head(kind, flags, thread, identity), start, end))
        if end > self.flush_at:
            self.flush_at = end + FLUSH_NANOSECONDS  # now: the collector may append in the middle of it
            self.flush_at = end + max(FLUSH_NANOSECONDS, self.flush())

    def sample(self, kind: int, identity: int, time: int, value: int) -> None:
        """Appends one sample: MEMORY, QUEUE or GRADIENT_NORM, whose second time is a value."""
        self.records.extend((head(kind, 0, 0, identity), time, value))

    def count(self, head: int) -> int | None:
        """Records with this head that were appended since it was first asked for, the head before it forgotten; None
        where another thread is writing them just now."""
        if not self._flushing.acquire(blocking=False):
            return None
        try:
            if head != self._counted:
                self._counted, self._written, self._uncounted = head, 0, len(self.records)
            return self._written + self.records[self._uncounted :: WORDS].count(head)
        finally:
            self._flushing.release()

    def flush(self) -> int:
        """Writes what is kept; whole records stay whole as far as the file system takes them. Whoever comes while
        somebody writes leaves it to the next flush. Returns what `append_to` does, or 0."""
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
        """Writes the rest; there is no more."""
        if self._path:
            self.flush()
            self._path = ""

    def forget(self) -> None:
        """In a forked child: drops what belongs to the parent, whose file it is, and a lock it may have held."""
        self._path, self._flushing = "", threading.Lock()
        self.records.clear()
