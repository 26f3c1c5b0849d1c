"""The largest allocations as blocks over time: what each held, from when to when, and the calls that asked for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.memory.lives import BEFORE, AllocationHistory
from steptime.memory.owners import LABELS, Codes, Owner
from steptime.memory.signs import Signs
from steptime.quantities import SourceLine, format_bytes, format_source
from steptime.report.page.over_time import TONES

MOST_BLOCKS, MOST_FRAMES = 200, 8
"""More blocks would be thinner than a line."""


@dataclass(frozen=True, slots=True)
class AllocationBlock:
    """One allocation, placed in the chart of memory over time. start, end: events at which its life starts and ends,
    clipped to the history. bottom: height at which the block is drawn, bytes; no other block overlaps it during its
    life. size: bytes. calls: lines of Python that led to the allocation, the innermost first."""

    start: int
    end: int
    bottom: int
    size: int
    owner: str
    source: SourceLine | None
    calls: tuple[str, ...]


def blocks_of(history: AllocationHistory, signs: Signs, owners: Codes) -> tuple[AllocationBlock, ...]:
    """The allocations that held the most memory (bytes × events), in order of allocation. Each is drawn as low as the
    blocks placed before it leave room during its life."""
    lives = history.lives
    start, end = np.where(lives.born == BEFORE, 0, lives.born), np.minimum(lives.died, history.events)
    held = lives.size * (end - start)
    rows = np.argsort(-held, kind="stable")[:MOST_BLOCKS]
    rows = rows[held[rows] > 0]
    placed: list[AllocationBlock] = []
    for row in rows[np.lexsort((-held[rows], start[rows]))].tolist():
        first, last, size, stack = int(start[row]), int(end[row]), int(lives.size[row]), int(lives.stack[row])
        bottom = _lowest([each for each in placed if each.start < last and first < each.end], size)
        frames = history.stacks.of(stack) if stack >= 0 else ()
        calls = tuple(f"{format_source(each)} {each.function}" for each in frames if each.file.endswith(".py"))
        source = signs.line[stack] if stack >= 0 else None
        owner = LABELS[Owner(int(owners[row]))]
        placed.append(AllocationBlock(first, last, bottom, size, owner, source, calls[:MOST_FRAMES]))
    return tuple(placed)


def _lowest(others: list[AllocationBlock], size: int) -> int:
    """The lowest place with room for so many bytes between others that live at the same time."""
    bottom = 0
    for each in sorted(others, key=lambda other: other.bottom):
        if each.bottom - bottom >= size:
            break
        bottom = max(bottom, each.bottom + each.size)
    return bottom


@dataclass(frozen=True, slots=True)
class DrawnBlock:
    """Rectangle of a block in the chart. x, y, width, height: percent of the chart, y from the top. tone: number of its
    owner's colour. words: text on hover."""

    x: float
    y: float
    width: float
    height: float
    tone: int
    words: str


@dataclass(frozen=True, slots=True)
class BlockChart:
    """Chart of allocations over time. place: name of the device. top: memory at the chart's upper edge, as text.
    events: number of events in the history."""

    identity: str
    place: str
    blocks: tuple[DrawnBlock, ...]
    top: str
    events: int


def block_chart(blocks: tuple[AllocationBlock, ...], place: str, events: int, identity: str) -> BlockChart | None:
    """Chart of the blocks; None if there are none."""
    if not blocks:
        return None
    top = max(each.bottom + each.size for each in blocks)
    names = list(LABELS.values())
    drawn = (
        DrawnBlock(
            x=100 * each.start / events,
            y=100 * (1 - (each.bottom + each.size) / top),
            width=100 * (each.end - each.start) / events,
            height=100 * each.size / top,
            tone=names.index(each.owner) % TONES,
            words="\n".join((f"{format_bytes(each.size)} {each.owner}", *each.calls)),
        )
        for each in blocks
    )
    return BlockChart(identity, place, tuple(drawn), format_bytes(top), events)
