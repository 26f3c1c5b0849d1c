"""How much of the time in which a batch is made a CPU works for it: the rest is waiting (disk, network, sleep), which
more workers share without more CPUs. Sampled, because the clock of CPU time costs more than the one of the wall.

A thread that is ready to run and has no CPU, because others have them all, does not wait in this sense: Linux tells
that time (`schedstat`), and it counts as work. No descriptor is kept open for it: a job may close any number.

In a worker the CPU time is the whole process's, so that threads of the items' own count; in the training process, whose
other threads train, it is the thread's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from steptime.journal import busy_flags

PERIOD = 100_000_000
"""ns between two samples of a process: one takes 15 us, several times that where CPUs are short."""
SCHEDULED = "/proc/thread-self/schedstat"
"""Nanoseconds on a CPU (which lag behind while the thread runs), nanoseconds that it waited for one, turns."""


class _BusyState:
    """Of this process."""

    due = 0
    clock: Callable[[], int] = time.thread_time_ns
    scheduled = True


_at_fetch: dict[int, int] = {}
"""`_wanted` when a batch that is sampled began, by the thread's identifier."""
_at_collate: dict[int, int] = {}


def become_worker() -> None:
    """This process makes batches and does nothing else."""
    _BusyState.clock = time.process_time_ns


def fetch_begins(thread: int, begin: int) -> None:
    """Before the clock is stamped. Forgets a batch that an error ended."""
    if _at_fetch:
        _at_fetch.pop(thread, None)
        _at_collate.pop(thread, None)
    if begin >= _BusyState.due:
        _BusyState.due = begin + PERIOD
        _at_fetch[thread] = _wanted()


def collate_begins(thread: int) -> None:
    """Behind the stamp."""
    if thread in _at_fetch:
        _at_collate[thread] = _wanted()


def shares(thread: int, fetch: int, collate: int, end: int) -> tuple[int, int]:
    """The flags of a batch's FETCH and COLLATE, just after its end: 0 where it was not sampled."""
    if thread not in _at_collate:
        return 0, 0
    first, second = _at_fetch.pop(thread), _at_collate.pop(thread)
    return busy_flags(second - first, collate - fetch), busy_flags(_wanted() - second, end - collate)


def _wanted() -> int:
    """ns in which a CPU worked for the batches of this thread, or was wanted for them."""
    return _BusyState.clock() + _delay()


def _delay() -> int:
    """ns that this thread waited for a CPU; 0 where the system does not tell."""
    if not _BusyState.scheduled:
        return 0
    try:
        file = os.open(SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 64).split()[1])
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        _BusyState.scheduled = False
        return 0
