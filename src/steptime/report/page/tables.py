"""The tables of the page: every number with its text for a reader and its raw value for sorting and for CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from steptime.advice.evidence import Case, CategoryUse
from steptime.quantities import SourceLine, format_bytes, format_duration, format_share, format_source
from steptime.report.page.waterfall import interval_text
from steptime.report.tables import format_rate, predictions, unnamed

Use = TypeVar("Use")

MOST_ROWS = 400
"""What takes longer to scroll through than to filter in the JSON."""
LONGEST = 300
"""Characters of a name: templates of C++ have kilobytes of them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """text: for a reader; value: raw, "" where it is unknown. bar: percent of the column's largest, None for no bar."""

    text: str
    value: float | str
    bar: float | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """raw: what the column is called in CSV, with its unit. number: it is sorted by value, the largest first."""

    title: str
    raw: str
    number: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. identity: unique on the page. note: a sentence under the title. hidden: rows that were left out."""

    identity: str
    title: str
    note: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Column(Generic[Use]):
    """How a column is made of what the table is of."""

    heading: Heading
    cell: Callable[[Use], Cell]
    barred: bool = False


def grids(case: Case) -> tuple[Grid, ...]:
    """The tables of a case that have rows, in the order in which a reader needs them."""
    every = (
        _gaps(case), _kernels(case), _operators(case), _lines(case), _copies(case), _collectives(case),
        _allocations(case), _chains(case), _segments(case),
    )  # fmt: skip
    return tuple(grid for grid in every if grid.rows)


def category_grids(case: Case) -> tuple[Grid, ...]:
    """Categories and phases with their intervals."""
    both = (("categories", "Categories", case.categories), ("phases", "Phases", case.phases))
    return tuple(_categories(identity, title, uses, case) for identity, title, uses in both if uses)


def replay_grids(case: Case) -> tuple[Grid, ...]:
    """What a change would save, and what the step's length hangs on."""
    replay, step = case.replay, case.step.duration.value
    if replay is None:
        return ()
    whole = sum(spent for _, spent in replay.critical_path)
    error = f"The unchanged replay misses the measured steps by {format_share(replay.error)}."
    changes = _grid(
        "what-if", "What a change would save", error, predictions(replay, step),
        _word("change", "change", lambda use: use.change),
        _duration("a step", "saved_ns", lambda use: use.saved.value, barred=True),
        _word("interval", "interval", lambda use: interval_text(use.saved)),
        _share("of the step", "share", lambda use: use.saved.value / step),
        _duration("at most", "cap_ns", lambda use: use.cap),
    )  # fmt: skip
    path = _grid(
        "critical-path", "The critical path", "What the length of the step hangs on, by kind.", replay.critical_path,
        _word("kind", "kind", lambda use: use[0]),
        _duration("a step", "duration_ns", lambda use: use[1], barred=True),
        _share("share", "share", lambda use: use[1] / whole if whole else 0.0),
    )  # fmt: skip
    longest = _grid(
        "longest", "Longest on the critical path", "", replay.longest,
        _word("what", "name", lambda use: use[1].removeprefix("void ") or unnamed(use[0])),
        _word("kind", "kind", lambda use: use[0]),
        _duration("a step", "duration_ns", lambda use: use[2], barred=True),
        _share("share", "share", lambda use: use[2] / whole if whole else 0.0),
    )  # fmt: skip
    return tuple(grid for grid in (changes, path, longest) if grid.rows)


def _categories(identity: str, title: str, uses: tuple[CategoryUse, ...], case: Case) -> Grid:
    step = case.step.duration.value or 1.0
    return _grid(
        identity, title, "", uses,
        _word("category" if identity == "categories" else "phase", "name", lambda use: use.name),
        _duration("a step", "duration_ns", lambda use: use.duration.value, barred=True),
        _share("share", "share", lambda use: use.duration.value / step),
        _word("95 % interval", "interval", lambda use: interval_text(use.duration)),
        _duration("recoverable", "recoverable_ns", lambda use: use.recoverable.value),
    )  # fmt: skip


def _gaps(case: Case) -> Grid:
    return _grid(
        "gaps", "Why the device idled", "Idle time of the device by what held the thread that feeds it.",
        sorted(case.gaps, key=lambda use: -use.duration.value),
        _word("category", "category", lambda use: use.category, kind="category"),
        _word("behind it", "cause", lambda use: use.cause or "(between operators)"),
        _duration("a step", "duration_ns", lambda use: use.duration.value, barred=True),
        _word("95 % interval", "interval", lambda use: interval_text(use.duration)),
        _count("gaps", "count", lambda use: use.count),
        _duration("longest", "longest_ns", lambda use: use.longest),
        _place(lambda use: use.source),
    )  # fmt: skip


def _kernels(case: Case) -> Grid:
    step = case.step.duration.value or 1.0
    return _grid(
        "kernels", "Kernels", "Groups of one name, operator and shape.",
        sorted(case.kernels, key=lambda use: -use.duration),
        _word("kernel", "kernel", lambda use: use.name.removeprefix("void "), kind="code"),
        _word("operator", "operator", lambda use: use.operator),
        _count("calls", "calls", lambda use: use.calls),
        _duration("a step", "duration_ns", lambda use: use.duration, barred=True),
        _share("share", "share", lambda use: use.duration / step),
        _word("bound by", "bound", lambda use: use.bound, kind="bound"),
        _duration("at the roofline", "at_roofline_ns", lambda use: use.at_roofline),
        _rate("rate", "flop_per_s", lambda use: _per_second(use.flops, use.duration)),
        _word("format", "format", lambda use: use.dtype),
        _word("matrix unit", "matrix_unit", lambda use: {True: "yes", False: "no", None: ""}[use.matrix_unit]),
        _word("shapes", "shapes", lambda use: use.shapes, kind="code"),
        _place(lambda use: use.source),
    )  # fmt: skip


def _operators(case: Case) -> Grid:
    step = case.step.duration.value or 1.0
    return _grid(
        "operators", "Operators", "Leaf operators, summed over the step.",
        sorted(case.operators, key=lambda use: -use.duration),
        _word("operator", "operator", lambda use: use.name, kind="code"),
        _word("phase", "phase", lambda use: use.phase),
        _count("calls", "calls", lambda use: use.calls),
        _duration("a step", "duration_ns", lambda use: use.duration, barred=True),
        _share("share", "share", lambda use: use.duration / step),
        _word("bound by", "bound", lambda use: use.bound, kind="bound"),
        _rate("rate", "flop_per_s", lambda use: _per_second(use.flops, use.duration)),
        _size("bytes", "bytes", lambda use: use.bytes),
        _place(lambda use: use.source),
    )  # fmt: skip


def _lines(case: Case) -> Grid:
    return _grid(
        "lines", "Lines of the loop", "", sorted(case.lines, key=lambda use: -use.duration.value),
        _word("line", "line", lambda use: format_source(use.source)),
        _word("source", "source", lambda use: use.source.text, kind="code"),
        _word("role", "role", lambda use: use.role),
        _duration("a step", "duration_ns", lambda use: use.duration.value, barred=True),
        _duration("of it host", "host_ns", lambda use: use.host.value),
        _count("runs", "hits", lambda use: use.hits),
    )  # fmt: skip


def _copies(case: Case) -> Grid:
    return _grid(
        "copies", "Copies", "Exposed: while nothing else ran.",
        sorted(case.copies, key=lambda use: -use.duration.value),
        _word("copy", "copy", lambda use: f"{use.kind} {use.memory}".strip()),
        _word("operator", "operator", lambda use: use.operator),
        _count("calls", "calls", lambda use: use.calls),
        _size("bytes", "bytes", lambda use: use.bytes),
        _duration("a step", "duration_ns", lambda use: use.duration.value, barred=True),
        _duration("of it exposed", "exposed_ns", lambda use: use.exposed.value),
        _place(lambda use: use.source),
    )  # fmt: skip


def _collectives(case: Case) -> Grid:
    return _grid(
        "collectives", "Collectives", "Exposed: while nothing else ran.",
        sorted(case.collectives, key=lambda use: -use.duration.value),
        _word("collective", "collective", lambda use: use.name),
        _word("group", "group", lambda use: use.group),
        _count("calls", "calls", lambda use: use.calls),
        _size("bytes", "bytes", lambda use: use.bytes),
        _duration("a step", "duration_ns", lambda use: use.duration.value, barred=True),
        _duration("of it exposed", "exposed_ns", lambda use: use.exposed.value),
    )  # fmt: skip


def _allocations(case: Case) -> Grid:
    return _grid(
        "allocations", "Calls to the driver's allocator", "", case.allocations,
        _word("call", "call", lambda use: use.name),
        _count("calls", "calls", lambda use: use.calls),
        _duration("host", "host_ns", lambda use: use.duration.value, barred=True),
        _duration("device idle", "idle_ns", lambda use: use.idle.value),
        _place(lambda use: use.source),
    )  # fmt: skip


def _chains(case: Case) -> Grid:
    return _grid(
        "chains", "Chains of pointwise kernels", "One kernel could do each of them.",
        sorted(case.chains, key=lambda use: -use.duration),
        _word("chain", "chain", lambda use: " → ".join(use.operators), kind="code"),
        _count("times", "times", lambda use: use.calls),
        _duration("a step", "duration_ns", lambda use: use.duration, barred=True),
        _size("bytes", "bytes", lambda use: use.bytes),
        _size("of them in between", "saved_bytes", lambda use: use.saved),
        _place(lambda use: use.source),
    )  # fmt: skip


def _segments(case: Case) -> Grid:
    return _grid(
        "segments", "Between the steps", "Charged to no training step.", case.segments,
        _word("what", "what", lambda use: use.kind.replace("_", " ")),
        _count("times", "times", lambda use: use.count),
        _duration("in all", "total_ns", lambda use: use.duration, barred=True),
        _share("of the run", "share", lambda use: use.share),
    )  # fmt: skip


def _grid(identity: str, title: str, note: str, uses: Iterable[Use], *columns: Column[Use]) -> Grid:
    """The table; columns without any value are left out."""
    every = list(uses)
    shown = every[:MOST_ROWS]
    made = [(column, [column.cell(use) for use in shown]) for column in columns]
    kept = [(column, cells) for column, cells in made if any(cell.text for cell in cells)]
    rows = zip(*(_with_bars(cells) if column.barred else cells for column, cells in kept), strict=True)
    headings = tuple(column.heading for column, _ in kept)
    return Grid(identity, title, note, headings, tuple(rows), len(every) - len(shown))


def _with_bars(cells: Sequence[Cell]) -> list[Cell]:
    values = [cell.value if isinstance(cell.value, float | int) else 0.0 for cell in cells]
    largest = max(values, default=0.0)
    return [
        Cell(cell.text, cell.value, 100 * max(value, 0.0) / largest if largest > 0 else None)
        for cell, value in zip(cells, values, strict=True)
    ]


def _word(title: str, raw: str, get: Callable[[Use], str], kind: str = "") -> Column[Use]:
    def cell(use: Use) -> Cell:
        text = " ".join(get(use).split())
        return Cell(text if len(text) <= LONGEST else f"{text[:LONGEST]}…", text[:LONGEST], kind=kind)

    return Column(Heading(title, raw, number=False), cell)


def _number(
    title: str, raw: str, get: Callable[[Use], float | None], words: Callable[[float], str], barred: bool = False
) -> Column[Use]:
    def cell(use: Use) -> Cell:
        value = get(use)
        return Cell("", "") if value is None else Cell(words(value), value)

    return Column(Heading(title, raw, number=True), cell, barred)


def _duration(title: str, raw: str, get: Callable[[Use], float | None], *, barred: bool = False) -> Column[Use]:
    return _number(title, raw, get, format_duration, barred)


def _share(title: str, raw: str, get: Callable[[Use], float | None]) -> Column[Use]:
    return _number(title, raw, get, format_share)


def _count(title: str, raw: str, get: Callable[[Use], float | None]) -> Column[Use]:
    return _number(title, raw, get, lambda value: f"{value:.4g}")


def _size(title: str, raw: str, get: Callable[[Use], float | None]) -> Column[Use]:
    return _number(title, raw, get, format_bytes)


def _rate(title: str, raw: str, get: Callable[[Use], float | None]) -> Column[Use]:
    return _number(title, raw, get, lambda value: f"{format_rate(value)}FLOP/s")


def _place(get: Callable[[Use], SourceLine | None]) -> Column[Use]:
    def words(use: Use) -> str:
        source = get(use)
        return format_source(source) if source is not None else ""

    return _word("line", "line", words)


def _per_second(amount: float | None, duration: float) -> float | None:
    return amount / duration * 1e9 if amount and duration > 0 else None
