"""From one measurement to another as a waterfall: what each account added to the step, or took away from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from steptime.quantities import Estimate, format_duration
from steptime.report.page.frame import part
from steptime.report.page.scale import Tick, even_ticks


@dataclass(frozen=True, slots=True)
class Difference:
    """What an account's change did to the step. change: ns, after less before; its interval decides whether the row is
    told as beyond noise."""

    name: str
    change: Estimate


@dataclass(frozen=True, slots=True)
class Move:
    """A row as it is drawn. begin, width: percent of the plot; grown: the step became longer by it; certain: beyond
    noise; low, high: percent, the interval of where the block ends."""

    name: str
    begin: float
    width: float
    grown: bool
    certain: bool
    low: float
    high: float
    words: str
    interval: str


@dataclass(frozen=True, slots=True)
class Moves:
    """The picture. before, after: widths of the first and the last bar, percent."""

    before: float
    after: float
    before_words: str
    after_words: str
    labels: tuple[str, str]
    rows: tuple[Move, ...]
    ticks: tuple[Tick, ...]


def waterfall(
    rows: Sequence[Difference], before: float, after: float, labels: tuple[str, str] = ("before", "after")
) -> Markup:
    """The picture as markup for a page of `frame.document`. before, after: ns of the step. rows: in the order in which
    they are shown; what they leave open between before and after is shown as the last row."""
    return part("differences.html", moves=moves_of(rows, before, after, labels))


def moves_of(rows: Sequence[Difference], before: float, after: float, labels: tuple[str, str]) -> Moves:
    """Where everything lies."""
    left = after - before - sum(row.change.value for row in rows)
    if abs(left) > 0.001 * max(before, after, 1.0):
        rows = (*rows, Difference("other", Estimate(left, left, left, 1)))
    heights = [before]
    for row in rows:
        heights.append(heights[-1] + row.change.value)
    top = max(*heights, after, *(start + row.change.high for start, row in zip(heights, rows, strict=False)), 1.0)
    scale = 100 / top
    return Moves(
        before=before * scale,
        after=after * scale,
        before_words=format_duration(before),
        after_words=format_duration(after),
        labels=labels,
        rows=tuple(_move(row, start, scale) for row, start in zip(rows, heights, strict=False)),
        ticks=even_ticks(top),
    )


def _move(row: Difference, start: float, scale: float) -> Move:
    change = row.change
    end = start + change.value
    known = change.samples > 1
    return Move(
        name=row.name,
        begin=max(min(start, end), 0.0) * scale,
        width=abs(change.value) * scale,
        grown=change.value > 0,
        certain=known and (change.low > 0 or change.high < 0),
        low=max(start + change.low, 0.0) * scale if known else end * scale,
        high=max(start + change.high, 0.0) * scale if known else end * scale,
        words=_signed(change.value),
        interval=f"{_signed(change.low)} to {_signed(change.high)}" if known else "",
    )


def _signed(nanoseconds: float) -> str:
    """ "+12.3 ms", "−4 µs"."""
    if not nanoseconds:
        return "0"
    return f"{'+' if nanoseconds > 0 else '−'}{format_duration(abs(nanoseconds))}"
