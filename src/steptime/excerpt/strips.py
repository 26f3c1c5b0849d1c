"""From events to an excerpt: rows in which nothing overlaps, numbers for names, columns as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.excerpt.excerpt import Detail, Excerpt, Label, Track

Named = TypeVar("Named", Label, Detail)
MOST_EVENTS = 50_000
"""More would not be told apart, and would outgrow the page."""
MOST_BYTES = 1_150_000
"""Of the excerpt as JSON, about: a page is to stay below 2.5 MB with it."""
LONGEST = 300
"""Characters of a name."""
MOST_ROWS = 64
"""Of one track: deeper stacks are left out."""
_TRIES = 4
FIRST = np.int64(1) << 60
"""More than any duration in ns: what is weighed with it stays before what is not."""


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """The events of a track, in any order; columns of one length. begin, end: ns, absolute. label, detail: numbers in
    `labels` and `details`, both of this strip alone. first: whether its events are kept before those of others."""

    name: str
    kind: str
    begin: Int64
    end: Int64
    label: Int64
    labels: tuple[Label, ...]
    detail: Int64
    details: tuple[Detail, ...]
    first: bool = True

    def __len__(self) -> int:
        return len(self.begin)

    def only(self, kept: Bool) -> Strip:
        """The strip with the events of a mask."""
        return Strip(
            self.name, self.kind, self.begin[kept], self.end[kept], self.label[kept], self.labels,
            self.detail[kept], self.details, self.first,
        )  # fmt: skip


def assemble(
    strips: Sequence[Strip], shown: tuple[int, int], step: tuple[int, int], number: int, how: str, left_out: int = 0
) -> Excerpt:
    """The excerpt of these tracks, in their order. shown, step: (begin, end) in ns, absolute; number, how: see
    `Excerpt`; left_out: events that the strips lack already. The shortest events go where there are too many of them or
    too many bytes."""
    count = sum(map(len, strips)) + left_out
    most = MOST_EVENTS
    for _ in range(_TRIES):
        made = _assembled(_longest(strips, most), shown, step, number, how, count)
        size = _size(made)
        if size <= MOST_BYTES:
            break
        most = int(0.9 * made.events * MOST_BYTES / size)
    return made


def rows_of(begin: Int64, end: Int64) -> Int64:
    """The row of each event, by begin and then by the longest: the first one that is free. A call lies below its
    caller; streams whose kernels overlap get further rows. MOST_ROWS for what finds no free one among so many."""
    rows = np.empty(len(begin), np.int64)
    ends: list[int] = []
    for index, (starts, stops) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        row = next((row for row, last in enumerate(ends) if last <= starts), len(ends))
        rows[index] = row
        if row == MOST_ROWS:
            continue
        if row == len(ends):
            ends.append(stops)
        else:
            ends[row] = stops
    return rows


def text(name: str) -> str:
    """A name of at most LONGEST characters."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _longest(strips: Sequence[Strip], most: int) -> list[Strip]:
    """The strips with at most so many events: those that come first, then the longest."""
    if sum(map(len, strips)) <= most:
        return list(strips)
    weights = [each.end - each.begin + FIRST * each.first for each in strips]
    joined = np.concatenate(weights)
    kept = np.zeros(len(joined), np.bool_)
    kept[np.argsort(-joined, kind="stable")[: max(most, 1)]] = True
    borders = np.cumsum([0, *map(len, strips)])
    return [each.only(kept[borders[at] : borders[at + 1]]) for at, each in enumerate(strips)]


def _assembled(
    strips: Sequence[Strip], shown: tuple[int, int], step: tuple[int, int], number: int, how: str, count: int
) -> Excerpt:
    labels: dict[Label, int] = {}
    details: dict[Detail, int] = {Detail(): 0}
    laid = [_Laid(each, shown[0], labels, details) for each in strips if len(each)]
    columns = [" ".join(part for each in laid for part in each.columns[at]) for at in range(4)]
    return Excerpt(
        step=number,
        how=how,
        length=shown[1] - shown[0],
        begin=step[0] - shown[0],
        end=step[1] - shown[0],
        tracks=tuple(each.track for each in laid),
        labels=tuple(labels),
        details=tuple(details),
        gap_column=columns[0],
        duration_column=columns[1],
        label_column=columns[2],
        detail_column=columns[3],
        left_out=count - sum(sum(each.track.rows) for each in laid),
    )


class _Laid:
    """A strip in rows. labels, details: the pools of the whole excerpt, which grow."""

    def __init__(self, strip: Strip, zero: int, labels: dict[Label, int], details: dict[Detail, int]) -> None:
        order = np.lexsort((-strip.end, strip.begin))
        begin, end = strip.begin[order] - zero, strip.end[order] - zero
        row = rows_of(begin, end)
        by_row = np.argsort(row, kind="stable")
        by_row = by_row[row[by_row] < MOST_ROWS]
        row, begin, end = row[by_row], begin[by_row], end[by_row]
        before = np.concatenate(([0], end[:-1]))
        before[np.flatnonzero(np.diff(row, prepend=-1))] = 0
        label = _pooled(strip.label[order][by_row], strip.labels, labels)
        detail = _pooled(strip.detail[order][by_row], strip.details, details)
        self.track = Track(strip.name, strip.kind, tuple(np.bincount(row).tolist()))
        self.columns = [map(str, each.tolist()) for each in (begin - before, end - begin, label, detail)]


def _pooled(numbers: Int64, own: Sequence[Named], pool: dict[Named, int]) -> Int64:
    """The numbers of what is used in the pool of all."""
    places = np.zeros(len(own), np.int64)
    for number in np.unique(numbers).tolist():
        places[number] = pool.setdefault(own[number], len(pool))
    return places[numbers]


def _size(excerpt: Excerpt) -> int:
    """Bytes as JSON, about."""
    columns = (excerpt.gap_column, excerpt.duration_column, excerpt.label_column, excerpt.detail_column)
    names = sum(len(each.name) + 30 for each in excerpt.labels)
    known = sum(
        90 + len(each.operator) + len(each.shapes) + len(each.formats) + len(each.note) + 60 * (each.source is not None)
        for each in excerpt.details
    )
    return sum(map(len, columns)) + names + known
