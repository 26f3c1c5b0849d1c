"""Instrumentation of the DataLoader: time per item, collate and queue, in the trainer and its workers, without a frame
of ours.

torch reads `fetcher.fetch`, then (after the items) `fetcher.collate_fn`, and in a worker then `data_queue.put`.
Descriptors there read the clock and return the original, so the user's stack and tracebacks stay the same (torch 2.4 to
2.13; accelerate and torchdata's StatefulDataLoader use the same fetchers).

A worker appends to loader.bin in the folder of its parent process. Forked workers know the iterator's number; spawned
ones write SPAWNED + the loader's random base seed instead, which `LoaderFacts.seed` resolves.

CPU time per batch is sampled, because its clock is slow. The rest is waiting, which more workers share without more
CPUs. Waiting for a free CPU counts as work: Linux reports that time (`schedstat`). The CPU time is that of the whole
process in a worker, and of the thread in the trainer.

The first worker also times the lines of the user's functions in a few batches. In a few more, it examines what the
hottest ones read and compute again. The items of an iterator's first batches are examined (`items`).
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import queue
import sys
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from threading import get_ident
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import fetch as torch_fetch, worker as torch_worker

from steptime.journal import RECORD, SPAWNED, Kind, append_to, busy_flags
from steptime.probe import datasets, sites
from steptime.probe.items import ItemLook
from steptime.probe.objects import ObjectNumbers, SideTable, unasked
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.recorder import append_facts
from steptime.probe.repeats import RepeatObserver
from steptime.probe.sampling import LineSampler

PERIOD = 100_000_000
"""Time between two samples of a process, ns. One takes 15 µs, several times that if CPUs are short."""
SCHEDULED = "/proc/thread-self/schedstat"
"""File with ns on a CPU (delayed while the thread runs), ns waiting for one, and number of turns."""


class _BusyState:
    """Process-wide state. due: time of the next sample, ns; clock: CPU time, ns; scheduled: the system reports waiting
    times."""

    due = 0
    clock: Callable[[], int] = time.thread_time_ns
    scheduled = True


_at_fetch: dict[int, int] = {}
"""`_wanted` at the start of a sampled batch, by thread identifier; `_at_collate` at its collate."""
_at_collate: dict[int, int] = {}


def fetch_starts(thread: int, start: int) -> None:
    """Called before a batch is read. Starts a sample if one is due; forgets a batch that an error ended."""
    if _at_fetch:
        _at_fetch.pop(thread, None)
        _at_collate.pop(thread, None)
    if start >= _BusyState.due:
        _BusyState.due = start + PERIOD
        _at_fetch[thread] = _wanted()


def collate_starts(thread: int) -> None:
    if thread in _at_fetch:
        _at_collate[thread] = _wanted()


def busy_shares(thread: int, fetch: int, collate: int, end: int) -> tuple[int, int]:
    """Returns the flags of a batch's FETCH and COLLATE, right after the batch's end; 0 without a sample."""
    if thread not in _at_collate:
        return 0, 0
    first, second = _at_fetch.pop(thread), _at_collate.pop(thread)
    return busy_flags(second - first, collate - fetch), busy_flags(_wanted() - second, end - collate)


def _wanted() -> int:
    """Returns the ns in which a CPU worked for this thread's batches, plus the ns of waiting for one if known."""
    worked, waited = _BusyState.clock(), 0
    if _BusyState.scheduled:
        try:
            file = os.open(SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
            try:
                waited = int(os.read(file, 64).split()[1])
            finally:
                os.close(file)
        except (OSError, ValueError, IndexError) as error:
            _BusyState.scheduled = False
            pass_on(error)
    return worked + waited


FETCH, COLLATE, QUEUE, LOADER_START = int(Kind.FETCH), int(Kind.COLLATE), int(Kind.QUEUE), int(Kind.LOADER_START)
KEPT_BYTES = 3 * 1024 * RECORD.size
"""Bytes of records, the newest 1024 batches, that a worker keeps until the trainer trains and has a folder."""
LARGEST_NUMBER = 65535
_starts: SideTable[list[int]] = SideTable()
"""Starts of iterators, from construction, or a further epoch of the workers, to the first batch: [start ns, end ns,
ordered batches]."""

now = time.perf_counter_ns
pack = RECORD.pack


class _LoaderState:
    """Process-wide state; a forked worker inherits it."""

    recording = ""
    append: Callable[[int, int, int, int, int], None] | None = None
    number_of: Callable[[Any], int] | None = None
    constructed = 0
    fetches: dict[Any, _Fetch] = {}  # noqa: RUF012 - one per process
    worker: _Worker | None = None
    failed = False
    sites: dict[int, dict[str, Any]] = {}  # noqa: RUF012 - one per process
    loaders = ObjectNumbers()
    made_by: dict[int, int] = {}  # noqa: RUF012 - one per process


fetched: dict[int, int] = {}
"""Start of the latest batch of a thread, ns, by thread identifier: cheaper than a threading.local."""
collated: dict[int, int] = {}
"""End of reading its items, ns."""
look = ItemLook()
"""Examination of items in this process; each worker has its own."""
_looking: set[int] = set()
"""Identifiers of the threads whose next batch is examined."""


LINED_BATCHES, LINED_TIME = 3, 500_000_000
"""Batches whose lines are timed, after a worker's first one, which imports and opens; most ns for them. As many
and one, that these are held against, are looked at afterwards."""
MOST_LINED = 4
"""Workers of a job that time lines: each epoch may start others."""
WORKER_SAMPLES, REPEATS, ITEMS = "worker_samples", "repeats", "items"


FUNCTIONS = (FunctionType, MethodType)


def code_of(collate: Any) -> Iterator[CodeType]:
    """Yields the code of the user's function that collates, if there is one."""
    function = collate.func if type(collate) is partial else collate
    own = (each.__dict__.get("__call__") for each in type(function).__mro__)
    code = getattr(function if type(function) in FUNCTIONS else next(filter(None, own), None), "__code__", None)
    if type(code) is CodeType and sites.whose(code.co_filename) == sites.USER:
        yield code


class _WorkerLines:
    """Line times in a few batches of a worker, and what its hottest functions go through in a few more. `facts`: what
    is known so far, (kind, fields); over: no more will come."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, dict[str, Any]]] = []
        self.over = False
        self._batches, self._collate = 0, None
        self._stage = self._run()

    def goes_on(self, collate: Any = None) -> None:
        """Called when a batch is requested (collate: the function that collates it), and when it was made."""
        self._collate = collate or self._collate
        self.over = self.over or next(self._stage, self) is self

    def end(self) -> None:
        """Ends the timing with the batches so far."""
        self._stage.close()

    def _run(self) -> Generator[None, None, None]:
        """Resumed at each start and each end of a batch."""
        yield from (None, None)
        sampler = LineSampler()
        if not sampler.start():
            return
        try:
            yield from self._some(LINED_BATCHES)
        finally:
            found = sampler.stop(max(1, self._batches))
            if self._batches and found["paths"]:
                self.facts.append((WORKER_SAMPLES, found))
        yield
        observer, start = RepeatObserver({*sampler.hot, *code_of(self._collate)}, LINED_TIME), now()
        if not observer.start(None):
            return
        try:
            yield from self._some(LINED_BATCHES + 1, observer.boundary)
        finally:
            seen = {"lines": observer.stop(None), "steps": observer.steps, "works": observer.works}
            times = {"start": start, "end": now(), "held": observer.ours}
            self.facts.append((REPEATS, {**times, **seen, "single": observer.single}))

    def _some(self, most: int, ended: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Waits for the end of so many batches, or of the one after LINED_TIME; counts them."""
        until, self._batches = now() + LINED_TIME, 0
        while True:
            yield
            self._batches += 1
            ended()
            if self._batches == most or now() > until:
                return
            yield


class _Worker:
    """Worker's side: three records per batch, collected and appended to the trainer's loader.bin."""

    def __init__(self, recording: str, information: Any, iterator: int) -> None:
        parent = multiprocessing.parent_process()
        self._folder = os.path.join(recording, f"process-{parent.pid if parent else os.getppid()}")
        self._thread = min(int(information.id), LARGEST_NUMBER)
        self._iterator = iterator or SPAWNED | (int(information.seed) - int(information.id)) % SPAWNED
        self._path = ""
        self._kept = bytearray()
        self._last = self._flush_at = 0
        self.lines = _WorkerLines() if not self._thread and self._wanted() else None
        self.look = ItemLook() if self.lines is not None else None
        self._items: dict[str, Any] | None = None
        multiprocessing.util.Finalize(None, self.finish, exitpriority=100)  # a worker ends without atexit

    def batch(self, fetch: int, collate: int, end: int) -> None:
        """Records a batch. Raises OSError if the file cannot be written."""
        thread, iterator = self._thread, self._iterator
        reading, collating = busy_shares(get_ident(), fetch, collate, end)
        if self._last:
            self._kept += pack(QUEUE, 0, thread, iterator, self._last, fetch)
        self._kept += pack(FETCH, reading, thread, iterator, fetch, collate)
        self._kept += pack(COLLATE, collating, thread, iterator, collate, end)
        self._last = end
        if self.lines is not None:
            self.lines.goes_on()
        if self.look is not None:
            self._items = self.look.take(get_ident(), 0) or self._items
            self.look = self.look if self.look.wanted(0) else None
        if end > self._flush_at:
            self._flush_at = end + self.flush()

    def flush(self) -> int:
        """Writes the collected records once the trainer has a folder. Returns the result of `append_to`, or 0. Raises
        OSError."""
        if not self._path and not self._find():
            del self._kept[:-KEPT_BYTES]
            return 0
        if self.lines is not None and (known := self.lines.facts):
            append_facts(self._facts_path(), [(kind, {"iterator": self._iterator, **each}) for kind, each in known])
            known.clear()
        if self.lines is not None and self.lines.over:
            self.lines = None
        if self._items is not None:
            found, self._items = {"iterator": self._iterator, **self._items}, None
            append_facts(self._facts_path(), [(ITEMS, found)])
        written = bytes(self._kept)
        self._kept.clear()
        return append_to(self._path, written)

    def _facts_path(self) -> str:
        return os.path.join(os.path.dirname(self._path), "facts.jsonl")

    def _wanted(self) -> bool:
        """True if fewer than MOST_LINED workers have timed lines so far."""
        if not self._find():
            return True
        with open(self._facts_path(), "rb") as file:
            return file.read().count(f'"{WORKER_SAMPLES}"'.encode()) < MOST_LINED

    def finish(self) -> None:
        with suppressed(OSError):  # nobody is left who could read it
            if self.lines is not None:
                self.lines.end()
            self.flush()

    def _find(self) -> bool:
        folder, newest = self._folder, 0
        while os.path.isdir(f"{self._folder}-{newest + 1}"):  # the pid had been given out before
            newest += 1
            folder = f"{self._folder}-{newest}"
        if not os.path.isdir(folder):
            return False
        self._path = os.path.join(folder, "loader.bin")
        return True


class _Method:
    """Descriptor in place of a method: calls `stamp` when the method is read, and returns the original, bound."""

    def __init__(self, original: Any, stamp: Callable[[Any], None]) -> None:
        self.original, self._stamp = original, stamp

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self.original
        if not _LoaderState.failed:
            try:
                self._stamp(instance)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: the loader goes on unmeasured
                _LoaderState.failed = True
                pass_on(error)
        return MethodType(self.original, instance)

    @classmethod
    def place(cls, owner: Any, name: str, stamp: Callable[[Any], None]) -> None:
        setattr(owner, name, cls(owner.__dict__[name], stamp))


class _Fetch(_Method):
    """Descriptor of the fetcher's `fetch`: `_Method` in a single call, because it is read at every batch."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self.original
        if torch_worker._worker_info is not None and _LoaderState.worker is None and not _LoaderState.failed:
            try:
                _become_worker(torch_worker._worker_info)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: the loader goes on unmeasured
                _LoaderState.failed = True
                pass_on(error)
        thread = get_ident()
        fetch_starts(thread, now())
        if _LoaderState.worker is not None and _LoaderState.worker.lines is not None:
            _LoaderState.worker.lines.goes_on(instance.__dict__.get("collate_fn"))
        if thread in _looking or (_LoaderState.worker is not None and _LoaderState.worker.look is not None):
            _look(thread)
        fetched[thread] = now()
        return MethodType(self.original, instance)


class _Collate:
    """Descriptor of the fetcher's `collate_fn`, which stays in the instance; reading it reads the clock."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            raise AttributeError("collate_fn")
        thread = get_ident()
        collated[thread] = now()
        collate_starts(thread)
        if thread in _looking or (_LoaderState.worker is not None and _LoaderState.worker.look is not None):
            _look(thread, sys._getframe(1))
        try:
            return instance.__dict__["collate_fn"]
        except KeyError:
            raise AttributeError("collate_fn") from None

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["collate_fn"] = value


def install(recording: str, append: Callable[[int, int, int, int, int], None], number_of: Callable[[Any], int]) -> None:
    """Installs the descriptors that time DataLoaders, once per process.

    `append(kind, flags, identity, start, end)` writes into the journal. `number_of(iterator)` returns the number of an
    iterator that starts, also again. Raises AttributeError or KeyError if torch's layout is unknown."""
    _LoaderState.recording, _LoaderState.append, _LoaderState.number_of = recording, append, number_of
    for fetcher in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):
        _LoaderState.fetches[fetcher] = _Fetch(fetcher.__dict__["fetch"], _become_worker)
    distinguish(True)
    _Method.place(torch_dataloader._BaseDataLoaderIter, "__init__", _constructed)
    _Method.place(torch_dataloader._MultiProcessingDataLoaderIter, "_reset", _reset)
    _Method.place(torch_dataloader._MultiProcessingDataLoaderIter, "_try_put_index", _index_put)


def record_into(recording: str) -> None:
    """Sets the folder into which workers record that are started from now on."""
    _LoaderState.recording = recording
    distinguish(True)


def distinguish(wanted: bool) -> None:
    """Sets whether this process times items and collate of its own batches separately: 9 µs per batch. Forked children
    do so from their first batch on, see `__init__`."""
    for fetcher, fetch in _LoaderState.fetches.items():
        here, wished = (fetch.original, fetch) if wanted else (fetch, fetch.original)
        if fetcher.__dict__["fetch"] is here:  # somebody may have replaced it
            fetcher.fetch = wished
    base, collate = torch_fetch._BaseDatasetFetcher, torch_fetch._BaseDatasetFetcher.__dict__.get("collate_fn")
    if wanted and collate is None:
        base.collate_fn = _Collate()
    elif not wanted and isinstance(collate, _Collate):
        del base.collate_fn


# -- stamps ------------------------------------------------------------------------------------------------------------


def _look(thread: int, fetching: FrameType | None = None) -> None:
    """Examines a batch's items: before they are read, or, with the frame that has read them, after."""
    worker = _LoaderState.worker
    mine = look if worker is None else worker.look
    try:
        if mine is not None and fetching is None:
            mine.start(thread)
        elif mine is not None and fetching is not None:
            with unasked():
                mine.end(thread, fetching.f_locals.get("data"))
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing is known of the items
        _looking.discard(thread)
        if worker is not None:
            worker.look = None
        pass_on(error)


def _constructed(iterator: Any) -> None:
    """Called when an iterator's base `__init__` is read: first of all, before its workers start."""
    start = now()
    if _LoaderState.number_of is None:
        return
    number = _LoaderState.number_of(iterator)
    _LoaderState.constructed = number
    _starts.keep(iterator, [start, 0, 0])
    frame = sys._getframe(2)  # the iterator's own __init__, whose argument the loader is
    loader = frame.f_locals.get("loader")
    if loader is not None:
        _LoaderState.made_by[number] = _LoaderState.loaders.of(loader)[0]
    place = sites.user_frame(frame) or sites.user_frame(frame, sites.LIBRARY)
    site = sites.site_of(loader) or sites.line_of(place)
    if site is not None:
        _LoaderState.sites[number] = site


def _reset(iterator: Any) -> None:
    """Called when a further epoch of persistent workers starts; a construction, whose start is known, calls it, too."""
    start = _starts.of(iterator)
    if start is None or start[1]:  # or one that went by untimed
        _starts.keep(iterator, [now(), 0, 0])
    if _LoaderState.number_of is not None:
        _LoaderState.number_of(iterator)


def _index_put(iterator: Any) -> None:
    """Called when a batch is ordered. The last prefetched one ends the start; later, each taken batch orders
    another."""
    start = _starts.of(iterator)
    if start is not None and start[2] < iterator._prefetch_factor * iterator._num_workers:
        start[1] = now()
        start[2] += 1


def _become_worker(information: Any) -> None:
    """Called in a worker process at its first batch: from then on, reading its queue's `put` in the worker's loop ends
    the collate."""
    worker = _LoaderState.worker = _Worker(_LoaderState.recording, information, _LoaderState.constructed)
    _BusyState.clock = time.process_time_ns  # the process makes batches and does nothing else

    def put(_: Any) -> None:
        thread = get_ident()
        if thread in collated and sys._getframe(2).f_code.co_name == "_worker_loop":
            worker.batch(fetched.pop(thread), collated.pop(thread), now())

    _Method.place(multiprocessing.queues.Queue, "put", put)


# -- what the session asks ---------------------------------------------------------------------------------------------


def next_starts(iterator: Any, number: int, since: int) -> None:
    """Called when the trainer requests a batch. Records the start of an iterator if this is its first one."""
    start = _starts.take(iterator)
    if start is not None and _LoaderState.append is not None:
        _LoaderState.append(LOADER_START, 0, number, start[0], start[1] or since)
    if look.wanted(number):
        _looking.add(get_ident())


def next_ended(number: int, start: int, end: int) -> dict[str, Any] | None:
    """Called when the trainer has its batch. Without workers, the batch was made within this call. Returns the
    iterator's `ItemFacts` once, else None."""
    thread = get_ident()
    _looking.discard(thread)
    found = look.take(thread, number)
    fetch, collate = fetched.get(thread, 0), collated.get(thread, 0)
    if start < fetch < collate and _LoaderState.append is not None:
        reading, collating = busy_shares(thread, fetch, collate, end)
        _LoaderState.append(FETCH, reading, number, fetch, collate)
        _LoaderState.append(COLLATE, collating, number, collate, end)
    return {"iterator": number, **found} if found is not None else None


def ready(iterator: Any) -> int | None:
    """Returns the number of batches in the queue; None without workers or if the queue has no size. Takes no lock."""
    waiting = getattr(iterator, "_data_queue", None)
    if waiting is None:
        return None
    try:
        arrived = len(waiting.queue) if isinstance(waiting, queue.Queue) else waiting.qsize()
        return int(arrived) + len(iterator._task_info) - int(iterator._tasks_outstanding)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: macOS has no qsize, other queues may lack anything
        pass_on(error)
        return None


def iterator_facts(iterator: Any, number: int) -> dict[str, Any]:
    facts = datasets.iterator_facts(iterator, number, _LoaderState.sites.pop(number, None))
    return {**facts, "made_by": _LoaderState.made_by.pop(number, None)}
