"""The memory of a snapshot, a trace or a recording as a page: by owner over time, by line, what leaks."""

from __future__ import annotations

from collections.abc import Sequence
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
    account, lines, modules = found.account, text.line_rows(found), text.module_rows(found)
    savings, blocks = text.saving_rows(found), "Modules whose calls made it"
    grids = (
        _owners(found, number),
        _grid(f"lines-{number}", "Lines that held most", text.LINES, lines, len(account.lines), ""),
        _grid(f"modules-{number}", blocks, text.MODULES, modules, len(account.modules), ""),
        _grid(f"savings-{number}", "What would free memory", text.SAVINGS, savings, len(savings), text.OVERLAP),
    )
    return DeviceView(
        device=found.device,
        cut=found.cut,
        headline=text.headline(found),
        chart=memory_chart(found.over_time),
        failure=text.failure_text(found) if found.failure is not None else "",
        leaks=tuple(text.leak_text(leak) for leak in found.leaks),
        fits=" ".join(each.strip() for each in text.fitting(found)),
        grids=tuple(grid for grid in grids if grid.rows),
    )


def _owners(found: MemoryTriage, number: int) -> Grid:
    rows = text.by_size(found)
    headings = (_heading("owner"), _heading("held"), Heading("share", "share", number=True))
    shares = [size / max(1, found.account.reserved) for _, size in rows]
    cells = tuple(
        (_cell("owner", LABELS[owner], 1), _cell("held", size, rows[0][1]), Cell(format_share(share), share))
        for (owner, size), share in zip(rows, shares, strict=True)
    )
    return Grid(f"owners-{number}", f"By owner, {found.moment}", "", headings, cells)


def _grid(identity: str, title: str, head: tuple[str, ...], rows: Sequence[text.Row], every: int, note: str) -> Grid:
    """every: rows that there are, of which some are hidden."""
    largest = [max((cell for cell in column if isinstance(cell, int)), default=1) for column in zip(*rows, strict=True)]
    cells = tuple(tuple(map(_cell, head, row, largest)) for row in rows)
    return Grid(identity, title, note, tuple(map(_heading, head)), cells, every - len(rows))


def _heading(title: str) -> Heading:
    in_bytes = title in text.SIZES
    return Heading(title, "bytes" if in_bytes else title.split()[0], number=in_bytes or title == "blocks")


def _cell(title: str, value: str | int, largest: int) -> Cell:
    if isinstance(value, str):
        short = shorten(one_line(value), LONGEST)
        return Cell(short, short)
    if title in text.SIZES:
        return Cell(format_bytes(value), value, 100 * value / largest if largest > 0 else None)
    return Cell(f"{value}", value)
