"""Joined trace of one process, from all its recordings one after another.

torch.profiler's schedule writes a file for each of its cycles. Ids may start again in each file, so those of later
files are shifted beyond those of earlier ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steptime.errors import TraceError
from steptime.trace.cache import read_remembered
from steptime.trace.columns import Numbering, column_builders, table_of
from steptime.trace.databases import read_database
from steptime.trace.gather import RankFiles, host_process, mixed
from steptime.trace.reader import DEFAULT_MAX_SIZE
from steptime.trace.source import too_large
from steptime.trace.table import ABSENT, NO_ALLOCATIONS, Damage, EventTable, Trace

LINKING = {"correlation": 1, "external": 1, "sequence": 0}
"""Columns of ids that link events of one file, with the least valid id: 0 means none in some of them."""
HIGHEST = np.iinfo(np.int64).max // 2
LONGEST_PAUSE = 24 * 3600 * 10**9
"""Longest pause between two recordings of one process, ns. Process ids repeat in containers: longer is another run."""
DICTIONARIES = {"name": "symbols", "track": "tracks", "shapes": "shapes", "dtypes": "dtypes", "inputs": "inputs",
                "details": "details"}  # fmt: skip


def read_rank(found: RankFiles, *, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True) -> Trace:
    """One trace from all files of a rank. max_size: most bytes of JSON in all files together. cache: True to use the
    cache. Raises TraceError as `read` does, and mixed-traces if the files cannot be of one process."""
    if found.process is not None:
        trace = read_database(found.files[0], found.process, max_size=max_size)
    elif len(found.files) == 1:
        trace = read_remembered(found.files[0], max_size=max_size, cache=cache)
    else:
        trace = join(_parts(found.files, max_size, cache=cache))
    return trace if trace.rank is not None or found.rank is None else dataclasses.replace(trace, rank=found.rank)


def _parts(files: Sequence[Path], max_size: int, *, cache: bool) -> Iterator[Trace]:
    left = max_size
    for file in files:
        try:
            trace = read_remembered(file, max_size=left, cache=cache)
        except TraceError as error:
            if error.slug != "trace-too-large":
                raise
            raise too_large(f"{files[0]} and {len(files) - 1} more of its process hold", max_size) from None
        left -= trace.size
        yield trace


def join(traces: Iterable[Trace]) -> Trace:
    """One trace from several of one process, given in order of time. Raises TraceError (mixed-traces)."""
    joined = _Joined()
    for trace in traces:
        joined.add(trace)
    return joined.trace()


class _Joined:
    """Builder of one table from many traces, which can be freed after they were added."""

    def __init__(self) -> None:
        self._columns = column_builders()
        self._numbers: dict[str, Numbering[Any]] = {name: Numbering() for name in DICTIONARIES}
        self._moved = dict.fromkeys(LINKING, 0)
        self._first: Trace | None = None
        self._process: int | str | None = None
        self._windows: list[tuple[int, int]] = []
        self._parts: list[tuple[Path, int]] = []
        self._damage: list[Damage] = []
        self._size = 0

    def add(self, trace: Trace) -> None:
        self._check(trace)
        events = trace.events
        for name, field in DICTIONARIES.items():
            known, values = self._numbers[name], getattr(trace, field)
            table = np.array([*(known[value] for value in values), ABSENT], np.int32)  # ABSENT looks up the last one
            numbers = getattr(events, name)[:]
            self._columns[name].extend(table[np.where(numbers == ABSENT, -1, numbers)])
        for name in ("event_kind", "start", "duration", "bytes", "stream", "device", "blocks"):
            self._columns[name].extend(getattr(events, name)[:])
        for name, least in LINKING.items():
            self._move(events, name, least)
        self._damage.append(trace.damage)
        self._parts.append((trace.path, len(events)))
        self._size += trace.size

    def _check(self, trace: Trace) -> None:
        """Raises TraceError if this trace cannot follow the ones before."""
        process = host_process(trace)
        if self._first is None:
            none = {name: getattr(trace.events, name)[:0].copy() for name in self._columns}
            self._first = dataclasses.replace(trace, events=EventTable(**none))  # so that the columns can be freed
            self._process = process
        elif None not in (process, self._process) and process != self._process:
            both = f"{self._first.path} and {trace.path} are from one rank"
            raise mixed(f"{both}, but from two processes, {self._process} and {process}")
        if len(trace.events):
            self._follow(trace.path, int(trace.events.start.min()), int(trace.events.end.max()))

    def _follow(self, path: Path, start: int, end: int) -> None:
        """Notes a recording's time. It may overlap the one before a little, since events reach across boundaries."""
        assert self._first is not None
        if self._windows:
            before = self._windows[-1]
            overlap = before[1] - start
            if overlap > min(end - start, before[1] - before[0]) // 2 or -overlap > LONGEST_PAUSE:
                how = "at the same time" if overlap > 0 else "more than a day apart"
                raise TraceError(
                    "mixed-traces",
                    f"{self._first.path} and {path} claim to be from one process, but {how}: they are copies, "
                    "or traces of different jobs. Give the traces of one job.",
                )
            start = max(start, before[1])
        self._windows.append((start, max(start, end)))

    def _move(self, events: EventTable, name: str, least: int) -> None:
        """Appends ids, shifted beyond all ids so far."""
        values = getattr(events, name)[:].astype(np.int64)
        largest = int(values.max(initial=0))
        if largest + self._moved[name] >= HIGHEST:
            raise TraceError(
                "trace-too-large", f"The {name} ids of these files do not fit into 64 bits together. Give fewer files."
            )
        self._columns[name].extend(np.where(values >= least, values + self._moved[name], values))
        self._moved[name] += largest + 1

    def trace(self) -> Trace:
        """The joined trace. At least one must have been added."""
        assert self._first is not None
        truncated, *counts = map(sum, zip(*map(dataclasses.astuple, self._damage), strict=True))
        listed: dict[str, Any] = {field: tuple(self._numbers[name]) for name, field in DICTIONARIES.items()}
        return dataclasses.replace(
            self._first,
            size=self._size,
            events=table_of(self._columns),
            allocations=NO_ALLOCATIONS,
            windows=tuple(self._windows),
            parts=tuple(self._parts),
            damage=Damage(bool(truncated), *counts),
            **listed,
        )
