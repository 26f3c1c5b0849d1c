"""The memory of a snapshot, a trace or a recording as a page: by owner over time, by line, what leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from steptime.analysis.memory_samples import OverTime
from steptime.memory.owners import LABELS
from steptime.memory.triage import MemoryTriage
from steptime.quantities import format_bytes, format_duration, format_share
from steptime.report import memory
from steptime.report.memory import MemoryReport
from steptime.report.page.frame import part, whole
from steptime.report.page.tables import LONGEST, Cell, Grid, Heading
from steptime.report.page.waterfall import Tick
from steptime.report.printable import one_line, shorten

BOX = 1000
"""Side of the square that the areas are drawn in, which is stretched to the plot."""
TONES = 9
"""Colours; further owners begin again."""


@dataclass(frozen=True, slots=True)
class Area:
    """An owner. points: outline as a polygon. words: at the peak."""

    name: str
    tone: int
    points: str
    words: str


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """peak, height: percent from the left and from the bottom. note: a sentence."""

    identity: str
    title: str
    note: str
    place: str
    areas: tuple[Area, ...]
    peak: float
    height: float
    peak_words: str
    ticks: tuple[Tick, ...]
    begin: str
    end: str


def memory_chart(
    found: OverTime | None, identity: str = "memory", title: str = "Memory over time", note: str = ""
) -> MemoryChart | None:
    """The picture; None without points."""
    if found is None or len(found.times) < 2 or not any(map(any, found.bytes)):
        return None
    sums = [sum(column) for column in zip(*found.bytes, strict=True)]
    top = max(sums) * 1.06
    first, last = found.times[0], found.times[-1]
    across = [BOX * (time - first) / ((last - first) or 1) for time in found.times]
    below = [0.0] * len(sums)
    areas = []
    for number, (name, row) in enumerate(zip(found.owners, found.bytes, strict=True)):
        above = [low + value for low, value in zip(below, row, strict=True)]
        areas.append(Area(name, number % TONES, _outline(across, below, above, top), format_bytes(row[found.peak])))
        below = above
    at = across[found.peak] / BOX * 100
    return MemoryChart(
        identity=identity,
        title=title,
        note=note,
        place=found.place,
        areas=tuple(areas),
        peak=at,
        height=100 * sums[found.peak] / top,
        peak_words=f"{format_bytes(sums[found.peak])} at {_time(found, found.peak)}",
        ticks=_ticks(top),
        begin=_time(found, 0),
        end=_time(found, len(found.times) - 1),
    )


def drawn(found: OverTime) -> Markup:
    """The picture as markup for a page of `frame.document`; empty where there is nothing to draw."""
    return part("memory.html", memory=memory_chart(found))


def _outline(across: Sequence[float], below: Sequence[float], above: Sequence[float], top: float) -> str:
    """There along the upper edge, back along the lower one."""
    there = [f"{x:.1f},{BOX * (1 - y / top):.1f}" for x, y in zip(across, above, strict=True)]
    back = [f"{x:.1f},{BOX * (1 - y / top):.1f}" for x, y in zip(across, below, strict=True)]
    return " ".join([*there, *reversed(back)])


def _time(found: OverTime, at: int) -> str:
    time = found.times[at]
    return format_duration(time) if found.clock == "ns" else f"{found.clock} {time}"


def _ticks(top: float) -> tuple[Tick, ...]:
    """Round binary sizes, about four."""
    size = 1.0
    while top / size > 5:
        size *= 2
    sizes = [at * size for at in range(int(top / size) + 1)]
    return tuple(Tick(100 * each / top, format_bytes(each) if each else "0") for each in sizes)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device."""

    device: str
    cut: str
    headline: str
    chart: MemoryChart | None
    failure: str
    leaks: tuple[str, ...]
    fits: str
    grids: tuple[Grid, ...]


def render(report: MemoryReport) -> str:
    """The whole page."""
    shown = tuple(_shown(found, number) for number, found in enumerate(report.devices))
    problems = (*report.problems, *(each for found in report.devices for each in found.problems))
    return whole(
        "memory_page.html",
        title=one_line(f"Memory of {report.source}"),
        data=memory.json(report),
        devices=shown,
        growth=tuple(f"{each.process}: {each.sentence}" for each in report.growth),
        next_command=report.next_command,
        problems=tuple(dict.fromkeys(problems)),
    )


def _shown(found: MemoryTriage, number: int) -> DeviceView:
    return DeviceView(
        device=found.device,
        cut=found.cut,
        headline=memory.headline(found),
        chart=memory_chart(found.over_time),
        failure=memory.failure_text(found) if found.failure is not None else "",
        leaks=tuple(memory.leak_text(leak) for leak in found.leaks),
        fits=" ".join(each.strip() for each in memory.fitting(found)),
        grids=tuple(
            grid for grid in (made(found, number) for made in (_owners, _lines, _modules, _savings)) if grid.rows
        ),
    )


def _owners(found: MemoryTriage, number: int) -> Grid:
    whole_size = max(1, found.account.reserved)
    rows = sorted(found.account.entries, key=lambda entry: -entry[1])
    headings = (Heading("owner", "owner", number=False), _size(), Heading("share", "share", number=True))
    cells = tuple(
        (_word(LABELS[owner]), _bytes(size, rows[0][1]), Cell(format_share(size / whole_size), size / whole_size))
        for owner, size in rows
    )
    return Grid(f"owners-{number}", f"By owner, {found.moment}", "", headings, cells)


def _lines(found: MemoryTriage, number: int) -> Grid:
    headings = (
        Heading("owner", "owner", number=False), Heading("line", "line", number=False), _size(),
        Heading("blocks", "blocks", number=True),
    )  # fmt: skip
    lines = found.account.lines[: memory.MOST_ROWS]
    largest = max((line.bytes for line in lines), default=1)
    cells = tuple(
        (
            _word(LABELS[line.owner]),
            _word(memory.place(line.source)),
            _bytes(line.bytes, largest),
            Cell(f"{line.blocks}", line.blocks),
        )
        for line in lines
    )
    hidden = len(found.account.lines) - len(lines)
    return Grid(f"lines-{number}", "Lines that held most", "", headings, cells, hidden)


def _modules(found: MemoryTriage, number: int) -> Grid:
    headings = (
        Heading("owner", "owner", number=False), Heading("module", "module", number=False), _size(),
        Heading("blocks", "blocks", number=True),
    )  # fmt: skip
    modules = found.account.modules[: memory.MOST_ROWS]
    largest = max((each.bytes for each in modules), default=1)
    cells = tuple(
        (_word(LABELS[each.owner]), _word(each.path), _bytes(each.bytes, largest), Cell(f"{each.blocks}", each.blocks))
        for each in modules
    )
    hidden = len(found.account.modules) - len(modules)
    return Grid(f"modules-{number}", "Modules whose calls made it", "", headings, cells, hidden)


def _savings(found: MemoryTriage, number: int) -> Grid:
    headings = (
        Heading("what", "what", number=False), Heading("frees", "bytes", number=True),
        Heading("error", "error", number=False), Heading("cost", "cost", number=False),
        Heading("how it was estimated", "how", number=False),
    )  # fmt: skip
    largest = max((each.frees for each in found.savings), default=1)
    cells = tuple(
        (_word(each.name), _bytes(each.frees, largest), _word(each.error), _word(each.cost), _word(each.how))
        for each in found.savings
    )
    return Grid(f"savings-{number}", "What would free memory", memory.OVERLAP, headings, cells)


def _size() -> Heading:
    return Heading("held", "bytes", number=True)


def _word(text: str) -> Cell:
    short = shorten(one_line(text), LONGEST)
    return Cell(short, short)


def _bytes(size: int, largest: int) -> Cell:
    return Cell(format_bytes(size), size, 100 * size / largest if largest > 0 else None)
