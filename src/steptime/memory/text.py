"""What is shown of memory: the triage of each device, and of a recording its growth; as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from steptime.analysis.memory_samples import Growth
from steptime.memory.breakdown import Line
from steptime.memory.leaks import Leak
from steptime.memory.owners import LABELS, Owner
from steptime.memory.savings import Fit, checked
from steptime.memory.triage import Fragmentation, MemoryTriage
from steptime.quantities import SourceLine, format_bytes, format_duration, format_share
from steptime.report.json import document
from steptime.report.output import Renderer
from steptime.report.printable import one_line, printable
from steptime.report.sentences import place_text

SCHEMA_VERSION = 1
BAR = 24
MOST_ROWS = 40
MOST_LEAKS = 2
MOST_MODULES = 3
MOST_TIMES = 99
"""Of a batch: beyond, a factor says no more than that there is room."""
WOULD_FREE = "Would free of the peak (they overlap; ± is the largest error of that peak in measured pairs):"
OVERLAP = (
    "These overlap and do not add. The error is the largest of the peak that was left, in pairs of runs without and "
    "with the change."
)
LINES, MODULES = ("owner", "line", "held", "blocks"), ("owner", "module", "held", "blocks")
SAVINGS = ("what", "frees", "error", "cost", "how it was estimated")
SIZES = frozenset({"held", "frees", "size", "free", "largest piece", "live", "reserved"})
"""Columns of bytes."""
Row = tuple[str | int, ...]
ROOMY, CROWDED = (7, 5, 4), (5, 4, 3)
"""Rows of owners, lines and savings: 25 lines in all, with and without leaks, growth and failures."""


@dataclass(frozen=True, slots=True)
class ReferenceHolder:
    """Something in Python that grows with every step. bytes, tensors: per step; graph: with autograd's graph."""

    kind: str
    name: str
    source: SourceLine | None
    tensors: float
    bytes: float
    graph: bool
    process: str = ""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """source: the path that was given. devices: those with most memory first. growth: of a recording, by process and
    kind of memory; holders: what keeps what its steps leave behind. next_command: ready to paste."""

    source: str
    devices: tuple[MemoryTriage, ...]
    growth: tuple[Growth, ...] = ()
    holders: tuple[ReferenceHolder, ...] = ()
    next_command: str = ""
    problems: tuple[str, ...] = ()


def text(report: MemoryReport) -> str:
    """For a terminal: at most 25 lines, of the device that held most."""
    lines = [f"Memory of {report.source}"]
    if report.devices:
        lines += [f"Cut: {part}." for part in report.devices[0].cut.split("; ") if part]
        crowded = bool(report.holders or report.growth or report.devices[0].failure or report.devices[0].leaks)
        lines += _device(report.devices[0], len(report.devices), CROWDED if crowded else ROOMY)
    lines += [f"Leak: {_kept(each)}" for each in report.holders[:MOST_LEAKS]]
    lines += [f"Growth: {each.sentence}" for each in report.growth[:1]]
    lines += [f"Note: {problem}" for problem in _problems(report)[:1]]
    displayed = [printable(line) for line in lines]
    if report.next_command:
        displayed.append(printable(f"Next:  {report.next_command}"))
    return "".join(f"{line}\n" for line in displayed)


def _problems(report: MemoryReport) -> tuple[str, ...]:
    first = report.devices[0].problems if report.devices else ()
    return (*report.problems, *(problem for problem in first if problem not in report.problems))


def _device(found: MemoryTriage, devices: int, room: tuple[int, int, int]) -> list[str]:
    """room: rows of owners, of lines and of what would free memory."""
    others = f", the largest of {devices} devices" if devices > 1 else ""
    lines = [headline(found) + others]
    lines += _owner_lines(found, room[0])
    if found.failure is not None:
        lines.append(f"Out of memory: {failure_text(found)}")
    lines += ["Lines that held most:"] if found.account.lines else []
    modules = found.account.modules[:MOST_MODULES]
    placed = [line for line in found.account.lines if line.source is not None] or found.account.lines
    lines += [f"  {_line(line)}" for line in placed[: room[1] - bool(modules)]]
    if modules:
        lines.append(f"Modules: {', '.join(f'{each.path} {format_bytes(each.bytes)}' for each in modules)}")
    lines += [f"Leak: {leak_text(leak)}" for leak in found.leaks[:MOST_LEAKS]]
    lines += [WOULD_FREE] if found.savings else []
    lines += [f"  {format_bytes(each.frees):>8}  {each.name} ({each.error})" for each in found.savings[: room[2]]]
    return [*lines, *fitting(found)]


def headline(found: MemoryTriage) -> str:
    """What was held at the moment."""
    live, reserved = format_bytes(found.account.live), format_bytes(found.account.reserved)
    held = f"torch knew of {reserved}" if found.device == "CPU" else f"the process held {reserved}"
    return f"{found.device}, {found.moment}: {live} of tensors; {held}"


def _owner_lines(found: MemoryTriage, most: int) -> list[str]:
    total = max(1, found.account.reserved)
    ranked = [(LABELS[owner], size) for owner, size in by_size(found)]
    if len(ranked) > most:
        ranked[most:] = [("the rest", sum(size for _, size in ranked[most:]))]
    lines = []
    for name, size in ranked:
        share = f"{format_share(size / total):>7}  {'█' * round(BAR * size / total)}"
        lines.append(f"  {name:<26} {format_bytes(size):>9}  {share}".rstrip())
    return lines


def place(source: SourceLine | None) -> str:
    """Where, in words."""
    if source is None:
        return "no Python frame was recorded"
    return f"{place_text(source)} {source.function}".strip() if source.file else source.function


def _line(line: Line) -> str:
    blocks = f"{line.blocks} blocks" if line.blocks > 1 else "1 block"
    return f"{format_bytes(line.bytes):>8}  {LABELS[line.owner]:<16} {place(line.source)} ({blocks})"


def leak_text(leak: Leak) -> str:
    return (
        f"{place(leak.source)} leaves {format_bytes(leak.per_step.value)} behind in each of {leak.steps} steps "
        f"({leak.blocks:.3g} blocks a step, {format_bytes(leak.held)} by now)"
    )


def failure_text(found: MemoryTriage) -> str:
    failure = found.failure
    assert failure is not None
    where = f" at {place(failure.source)}" if failure.source is not None else ""
    return f"{format_bytes(failure.asked)} were asked for{where}. In the way: {failure.obstacle}."


def fitting(found: MemoryTriage) -> tuple[str, ...]:
    """How much larger a batch would fit, where the device's size is known; what that counts in, where it matters."""
    if found.fit is None or found.capacity is None:
        return ()
    fits = f"Fits {format_bytes(found.capacity)} with 10 % kept free: {_batch(found.fit)} ({checked(found.fit.kind)})."
    return (fits, f"  {found.fit.note[:1].upper()}{found.fit.note[1:]}.") if found.fit.note else (fits,)


def _batch(fit: Fit) -> str:
    if fit.most <= 0:
        return "no batch at all, what no batch changes is larger"
    if fit.most < 1:
        return f"only {format_share(fit.most)} of this batch"
    if fit.least >= MOST_TIMES:
        return f"a batch more than {MOST_TIMES} times as large"
    least, most = f"{fit.least:.2g}", f"{min(fit.most, MOST_TIMES):.2g}"
    return f"a batch {least if least == most else f'{least} to {most}'} times as large"


def _kept(holder: ReferenceHolder) -> str:
    named = f"{holder.kind} {holder.name}" if holder.kind and holder.name else "something that was not found"
    where = f" grows at {place_text(holder.source)}" if holder.source is not None else " grows"
    size = f"{format_bytes(holder.bytes)} in " if holder.bytes else ""
    count = f"{holder.tensors:.3g} tensor{'s' if holder.tensors > 1 else ''} a step"
    graph = f", with {'their' if holder.tensors > 1 else 'its'} graph" if holder.graph else ""
    return f"{named}{where}: {size}{count}{graph}" if holder.tensors >= 1 else f"{named}{where}: a sum{graph}"


def markdown(report: MemoryReport) -> str:
    """Everything, for a file."""
    parts = [f"# Memory of {report.source}\n"]
    parts += [f"> {problem}\n" for problem in _problems(report)]
    parts += [f"**Leak**: {_kept(holder)}\n" for holder in report.holders]
    parts += [f"**Growth**, {growth.process}: {growth.sentence}\n" for growth in report.growth]
    for found in report.devices:
        parts += _section(found)
    if report.next_command:
        parts.append(f"Next: `{report.next_command}`\n")
    return printable("\n".join(parts))


def _section(found: MemoryTriage) -> list[str]:
    owners = [
        (LABELS[owner], format_bytes(size), format_share(size / max(1, found.account.reserved)), f"{size:,}")
        for owner, size in by_size(found)
    ]
    cut = [f"> Cut: {found.cut}.\n"] if found.cut else []
    parts = [f"## {found.device}\n", *cut, f"{headline(found)}.\n", _table(("owner", "", "share", "bytes"), owners)]
    if found.failure is not None:
        parts.append(f"**Out of memory.** {failure_text(found)}\n")
    parts += ["### Lines\n", _table(LINES, line_rows(found))]
    if found.account.modules:
        parts += ["### Modules\n", _table(MODULES, module_rows(found))]
    parts += ["### Leaks\n", _leaks(found)]
    parts += ["### What would free memory\n", f"{OVERLAP}\n", _table(SAVINGS, saving_rows(found))]
    parts += [f"{' '.join(each.strip() for each in fitting(found))}\n"]
    if found.fragmentation is not None and found.fragmentation.free:
        parts += _fragments(found.fragmentation)
    points = [(format_duration(each.time), each.event, each.live, each.reserved) for each in found.timeline]
    return [*parts, "### Timeline\n", _table(("time", "event", "live", "reserved"), points)]


def by_size(found: MemoryTriage) -> list[tuple[Owner, int]]:
    """Owners and their bytes, the largest first."""
    return sorted(found.account.entries, key=lambda entry: -entry[1])


def line_rows(found: MemoryTriage) -> list[Row]:
    """Of a table with the columns LINES."""
    return [
        (LABELS[each.owner], place(each.source), each.bytes, each.blocks) for each in found.account.lines[:MOST_ROWS]
    ]


def module_rows(found: MemoryTriage) -> list[Row]:
    """Of a table with the columns MODULES."""
    return [(LABELS[each.owner], each.path, each.bytes, each.blocks) for each in found.account.modules[:MOST_ROWS]]


def saving_rows(found: MemoryTriage) -> list[Row]:
    """Of a table with the columns SAVINGS."""
    return [(each.name, each.frees, each.error, each.cost, each.how) for each in found.savings]


def _leaks(found: MemoryTriage) -> str:
    if found.leaks:
        return "".join(f"- {leak_text(leak)}\n" for leak in found.leaks)
    if found.steps < 4:
        boundaries = "1 boundary" if found.steps == 1 else f"{found.steps} boundaries"
        return f"Not examined: {boundaries} of steps in the history, and four are needed.\n"
    return f"None: no line leaves memory behind in every step ({found.steps} boundaries, by {found.boundary_source}).\n"


def _fragments(found: Fragmentation) -> list[str]:
    rows = [(f"{each.address:#x}", each.size, each.free, each.largest) for each in found.segments]
    sizes = (
        f"{format_bytes(found.free)} free in {found.pieces} pieces, {format_bytes(found.in_used)} of it in "
        f"segments that something alive holds; the largest piece is {format_bytes(found.largest)}.\n"
    )
    return ["### Free in the cache\n", sizes, _table(("segment", "size", "free", "largest piece"), rows)]


def _table(head: tuple[str, ...], rows: Sequence[Row]) -> str:
    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |\n"

    def texts(cells: Row) -> Iterator[str]:
        for title, cell in zip(head, cells, strict=True):
            yield format_bytes(cell) if title in SIZES and isinstance(cell, int) else str(cell)

    return row(head) + row("---" for _ in head) + "".join(row(texts(cells)) for cells in rows)


def json(report: MemoryReport) -> str:
    """Everything, for a program; owners by their names."""
    plain: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **msgspec.to_builtins(report)}
    for account in (device["account"] for device in plain["devices"]):
        account["entries"] = {LABELS[owner]: size for owner, size in account["entries"]}
        for use in (*account["lines"], *account["modules"]):
            use["owner"] = LABELS[use["owner"]]
    return document(plain)


def _page(report: MemoryReport) -> str:
    from steptime.memory import page  # templates take a while to import

    return page.render(report)


RENDERERS: tuple[Renderer[MemoryReport], ...] = (
    Renderer(".txt", text),
    Renderer(".md", markdown),
    Renderer(".json", json),
    Renderer(".html", _page),
)
