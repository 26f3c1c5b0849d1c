"""The memory of a snapshot, a trace or a recording as a page: by owner over time, by line, what leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from steptime.memory import text
from steptime.memory.owners import LABELS
from steptime.memory.text import MemoryReport
from steptime.memory.triage import MemoryTriage
from steptime.report.page.frame import whole
from steptime.report.page.over_time import MemoryChart, memory_chart
from steptime.report.printable import one_line
from steptime.report.tables import Column, Table, integer, share, size, table_of, word


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
    tables: tuple[Table, ...]


def render(report: MemoryReport) -> str:
    """The whole page."""
    displayed = tuple(_displayed(found, number) for number, found in enumerate(report.devices))
    problems = (*report.problems, *(each for found in report.devices for each in found.problems))
    return whole(
        "memory_page.html",
        title=one_line(f"Memory of {report.source}"),
        data=text.json(report),
        devices=displayed,
        growth=tuple(f"{each.process}: {each.sentence}" for each in report.growth),
        next_command=report.next_command,
        problems=tuple(dict.fromkeys(problems)),
    )


def memory_tables(report: MemoryReport) -> tuple[Table, ...]:
    """Of all devices, the one that held most first."""
    return tuple(table for number, found in enumerate(report.devices) for table in _tables(found, number))


def _tables(found: MemoryTriage, number: int) -> tuple[Table, ...]:
    account, lines, modules = found.account, text.line_rows(found), text.module_rows(found)
    savings, blocks = text.saving_rows(found), "Modules whose calls made it"
    tables = (
        _owners(found, number),
        _table(f"lines-{number}", "Lines that held most", text.LINES, lines, len(account.lines), ""),
        _table(f"modules-{number}", blocks, text.MODULES, modules, len(account.modules), ""),
        _table(f"savings-{number}", "What would free memory", text.SAVINGS, savings, len(savings), text.OVERLAP),
    )
    return tuple(table for table in tables if table.rows)


def _displayed(found: MemoryTriage, number: int) -> DeviceView:
    return DeviceView(
        device=found.device,
        cut=found.cut,
        headline=text.headline(found),
        chart=memory_chart(found.over_time),
        failure=text.failure_text(found) if found.failure is not None else "",
        leaks=tuple(text.leak_text(leak) for leak in found.leaks),
        fits=" ".join(each.strip() for each in text.fitting(found)),
        tables=_tables(found, number),
    )


def _owners(found: MemoryTriage, number: int) -> Table:
    whole_size = max(1, found.account.reserved)
    return table_of(
        f"owners-{number}", f"By owner, {found.moment}", "", text.by_size(found),
        word("owner", "owner", lambda entry: LABELS[entry[0]]),
        size("held", "bytes", lambda entry: entry[1], barred=True),
        share("share", "share", lambda entry: entry[1] / whole_size),
    )  # fmt: skip


def _table(identity: str, title: str, head: tuple[str, ...], rows: Sequence[text.Row], every: int, note: str) -> Table:
    """every: rows that there are, of which some are hidden."""
    columns = [_column(name, place) for place, name in enumerate(head)]
    return replace(table_of(identity, title, note, rows, *columns), hidden=every - len(rows))


def _column(title: str, place: int) -> Column[text.Row]:
    if title in text.SIZES:
        return size(title, "bytes", lambda row: int(row[place]), barred=True)
    if title == "blocks":
        return integer(title, title, lambda row: int(row[place]))
    return word(title, title.split()[0], lambda row: str(row[place]))
