"""Where the boxes of the flame graph lie: each stack below its caller, as wide as its share of the thread's time."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import format_duration, format_share
from steptime.report.flame import FlameGraph, FlameLabel, FlameThread, stacks_of

NARROWEST = 0.1
"""Percent: what is narrower is not drawn."""
MOST_BOXES = 700
"""Of a thread: the widest ones."""


@dataclass(frozen=True, slots=True)
class Box:
    """begin, width: percent. row: from the top. words: what is said beside the pointer."""

    name: str
    kind: str
    begin: float
    width: float
    row: int
    words: str


@dataclass(frozen=True, slots=True)
class Flame:
    """A thread or a stream."""

    name: str
    boxes: tuple[Box, ...]
    rows: int


def flames(graph: FlameGraph | None) -> tuple[Flame, ...]:
    """Threads, then streams; those that took no time are left out."""
    return tuple(_laid(thread, graph.labels) for thread in graph.threads) if graph is not None else ()


KINDS = (
    ("python", "python", "your function"),
    ("range", "range", "module or range"),
    ("operator", "operator", "operator"),
    ("call", "call", "runtime call"),
    ("compute", "tone-compute", "kernel"),
    ("communication", "tone-communication", "collective"),
    ("copy", "tone-copy", "copy"),
)
"""Kind, class of its colour, and words."""


def kinds_of(graph: FlameGraph | None) -> tuple[tuple[str, str, str], ...]:
    """What the legend has: those of KINDS that are in the picture."""
    present = {label.kind for label in graph.labels} if graph is not None else set()
    return tuple(each for each in KINDS if each[0] in present)


def _laid(thread: FlameThread, labels: tuple[FlameLabel, ...]) -> Flame:
    parent, label, own = stacks_of(thread)
    total = own.copy()
    for stack in range(len(own) - 1, 0, -1):
        total[parent[stack]] += total[stack]
    whole = max(total[0], 1)
    narrowest = max(NARROWEST / 100 * whole, sorted(total, reverse=True)[:MOST_BOXES][-1])
    begin, row, taken, boxes = [0], [0], [0] * len(own), []
    for stack in range(1, len(own)):
        around = parent[stack]
        begin.append(begin[around] + taken[around])
        row.append(row[around] + 1)
        taken[around] += total[stack]
    for stack, (number, spent) in enumerate(zip(label, total, strict=True)):
        if spent < narrowest:
            continue
        told = labels[number]
        place = f"{told.source.file}:{told.source.line}" if told.source is not None else ""
        itself = f", {format_duration(own[stack])} itself" if 0 < own[stack] < spent else ""
        words = f"{told.name}\n{format_duration(spent)}, {format_share(spent / whole)}{itself}\n{place}".strip()
        name = f"{told.name} ({place.rpartition('/')[2]})" if place else told.name
        boxes.append(Box(name, told.kind, 100 * begin[stack] / whole, 100 * spent / whole, row[stack], words))
    return Flame(thread.name, tuple(boxes), max(box.row for box in boxes) + 1)
