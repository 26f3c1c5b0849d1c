"""The memory of a snapshot, a trace or a recording as a page: by owner over time, by line, what leaks."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.memory import text
from steptime.memory.owners import LABELS
from steptime.memory.text import MemoryReport
from steptime.memory.triage import MemoryTriage
from steptime.quantities import format_bytes, format_share
from steptime.report.page.frame import whole
from steptime.report.page.memory import MemoryChart, memory_chart
from steptime.report.page.tables import LONGEST, Cell, Grid, Heading
from steptime.report.printable import one_line, shorten


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
        data=text.json(report),
        devices=shown,
        growth=tuple(f"{each.process}: {each.sentence}" for each in report.growth),
        next_command=report.next_command,
        problems=tuple(dict.fromkeys(problems)),
    )


def _shown(found: MemoryTriage, number: int) -> DeviceView:
    return DeviceView(
        device=found.device,
        cut=found.cut,
        headline=text.headline(found),
        chart=memory_chart(found.over_time),
        failure=text.failure_text(found) if found.failure is not None else "",
        leaks=tuple(text.leak_text(leak) for leak in found.leaks),
        fits=" ".join(each.strip() for each in text.fitting(found)),
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
    lines = found.account.lines[: text.MOST_ROWS]
    largest = max((line.bytes for line in lines), default=1)
    cells = tuple(
        (
            _word(LABELS[line.owner]),
            _word(text.place(line.source)),
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
    modules = found.account.modules[: text.MOST_ROWS]
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
    return Grid(f"savings-{number}", "What would free memory", text.OVERLAP, headings, cells)


def _size() -> Heading:
    return Heading("held", "bytes", number=True)


def _word(word: str) -> Cell:
    short = shorten(one_line(word), LONGEST)
    return Cell(short, short)


def _bytes(size: int, largest: int) -> Cell:
    return Cell(format_bytes(size), size, 100 * size / largest if largest > 0 else None)
