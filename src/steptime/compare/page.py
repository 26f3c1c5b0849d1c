"""The comparison as a page: the waterfall from the first run to the last, what was set otherwise, and all figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from markupsafe import Markup

from steptime.compare.cause import relative, relative_interval
from steptime.compare.comparison import ComparedRun, Comparison, Difference, render_json
from steptime.compare.text import signed
from steptime.quantities import Estimate, format_bytes, format_duration, format_share
from steptime.report.page import waterfall
from steptime.report.page.frame import whole
from steptime.report.page.tables import Cell, Grid, Heading
from steptime.report.printable import one_line

LONGEST = 300
"""Characters of a name."""
SMALLEST = 0.002
"""Of the longer step: categories that moved by less share a row."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound in words."""

    bound: str
    ruling: str
    sentence: str


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """Everything that the template shows."""

    first: str
    last: str
    labels: tuple[str, str]
    sentence: str
    waterfall: Markup
    settings: Grid | None
    remarks: tuple[str, ...]
    next_command: str
    gate: tuple[Gate, ...]
    runs: Grid | None
    trend: str
    grids: tuple[Grid, ...]


def render(comparison: Comparison) -> str:
    """The whole page."""
    first, last = one_line(comparison.runs[0].label), one_line(comparison.runs[-1].label)
    data = msgspec.json.format(render_json(comparison).encode(), indent=-1).decode()
    return whole("comparison.html", title=f"{first} against {last}", data=data, view=view_of(comparison))


def view_of(comparison: Comparison) -> ComparisonView:
    """What the template needs, in words."""
    several = len(comparison.runs) > 2
    return ComparisonView(
        first=one_line(comparison.runs[0].label),
        last=one_line(comparison.runs[-1].label),
        labels=("before", "now") if not several else ("the first", "the last"),
        sentence=comparison.sentence,
        waterfall=_waterfall(comparison),
        settings=_settings(comparison),
        remarks=(*comparison.caveats, comparison.noise.sentence),
        next_command=comparison.next_command,
        gate=tuple(Gate(each.bound, each.ruling.value, each.sentence) for each in comparison.checks),
        runs=_runs(comparison.runs) if several else None,
        trend=comparison.trend.sentence if comparison.trend is not None else "",
        grids=tuple(
            grid for grid in (_differences(comparison), _pieces(comparison), _findings(comparison)) if grid.rows
        ),
    )


def _waterfall(comparison: Comparison) -> Markup:
    step = comparison.step
    before, after = (each.value if each is not None else 0.0 for each in (step.before, step.after))
    moved = [(part.name, part.change) for part in comparison.parts if part.change is not None]
    rows = [waterfall.WaterfallChange(name, change) for name, change in moved
            if abs(change.value) >= SMALLEST * max(before, after)]  # fmt: skip
    return waterfall.differences_waterfall(rows, before, after, ("before", "now"))


def _differences(comparison: Comparison) -> Grid:
    every = [each for each in (comparison.step, comparison.sample, *comparison.parts, comparison.memory)
             if each is not None]  # fmt: skip
    headings = _headings("", "before", "now", "change", "95 % interval", "relative", "beyond noise?")
    return _grid("differences", f"Step, {comparison.by} and memory", "", headings, map(_difference, every))


def _difference(difference: Difference) -> tuple[Cell, ...]:
    before, after, change, ratio = difference.before, difference.after, difference.change, relative(difference)
    interval = f"{signed(change.low, change.unit)} to {signed(change.high, change.unit)}" if change is not None else ""
    return (
        Cell(difference.name, difference.name, kind="category"),
        _size(before),
        _size(after),
        Cell(signed(change.value, change.unit), change.value) if change is not None else Cell("", ""),
        Cell(interval, interval),
        Cell(f"{'+' if ratio.value > 0 else '-'}{format_share(abs(ratio.value))}", ratio.value)
        if ratio is not None
        else Cell("", ""),
        Cell(difference.outcome.value, difference.outcome.value),
    )


def _size(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("", "")
    told = format_bytes if estimate.unit == "bytes" else format_duration
    return Cell(told(estimate.value), estimate.value)


def _settings(comparison: Comparison) -> Grid | None:
    rows = [_words(each.name, each.before, each.after) for each in comparison.settings]
    headings = tuple(
        Heading(title, raw, number=False) for title, raw in (("", "name"), ("before", "before"), ("now", "now"))
    )
    return _grid("set-otherwise", "Set otherwise", "", headings, rows) if rows else None


def _runs(runs: Sequence[ComparedRun]) -> Grid:
    headings = _headings(
        "run",
        "commit",
        "a step",
        "against the first",
        "bound by",
        "memory",
        words=("run", "commit", "against the first", "bound by"),
    )
    rows = (
        (
            *_words(run.label, run.commit),
            _size(run.step),
            *_words(_against(run), run.bottleneck),
            Cell(format_bytes(run.peak_bytes), run.peak_bytes) if run.peak_bytes is not None else Cell("", ""),
        )
        for run in runs
    )
    return _grid("runs-table", "Runs", "In the order given.", headings, rows)


def _against(run: ComparedRun) -> str:
    if run.against_first is None:
        return ""
    return f"{relative_interval(run.against_first)}: {run.against_first.outcome.value}"


def _pieces(comparison: Comparison) -> Grid:
    headings = _headings(
        "", "kind", "name", "before", "now", "change", "calls before", "calls now", words=("", "kind", "name")
    )
    rows = (
        (
            *_words(piece.fate.value, piece.kind),
            Cell(_short(piece.name), _short(piece.name), kind="code"),
            _duration(piece.before),
            _duration(piece.after),
            Cell(signed(piece.change, "ns"), piece.change),
            _count(piece.calls_before),
            _count(piece.calls_after),
        )
        for piece in comparison.pieces
    )
    note = "What moved by a hundredth of a step or more, as means over the steps."
    return _grid("pieces", "Parts of the step", note, headings, rows)


def _findings(comparison: Comparison) -> Grid:
    headings = _headings("", "code", "name", "finding", words=("", "code", "name", "finding"))
    rows = (_words(each.fate.value, each.code, each.name, each.summary) for each in comparison.findings)
    return _grid("findings-table", "Findings", "Of one side only.", headings, rows)


def _grid(
    identity: str, title: str, note: str, headings: tuple[Heading, ...], rows: Iterable[tuple[Cell, ...]]
) -> Grid:
    return Grid(identity, title, note, headings, tuple(rows))


def _headings(*titles: str, words: Sequence[str] = ("", "95 % interval", "beyond noise?")) -> tuple[Heading, ...]:
    """Headings of columns of numbers, but for those of words."""
    return tuple(Heading(title, title.replace(" ", "_") or "name", title not in words) for title in titles)


def _words(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(_short(text), _short(text)) for text in texts)


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def _duration(value: float | None) -> Cell:
    return Cell(format_duration(value), value) if value is not None else Cell("", "")


def _count(value: float | None) -> Cell:
    return Cell(f"{value:.4g}", value) if value is not None else Cell("", "")
