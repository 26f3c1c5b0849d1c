"""The answer of `steptime memory`: owners of the bytes, leaks, and ways to free memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from steptime.answer.answer import Answer, Figure, Item, Part, Section
from steptime.answer.tables import Table, duration, integer, share, size, source_line, table_of, word
from steptime.memory.blocks import block_chart
from steptime.memory.leaks import Leak
from steptime.memory.owners import LABELS, Owner
from steptime.memory.report import MemoryReport, ReferenceHolder
from steptime.memory.savings import Fit, checked
from steptime.memory.triage import Fragmentation, MemoryTriage
from steptime.quantities import SourceLine, format_bytes, format_share
from steptime.report.page.over_time import MemoryChart, memory_chart
from steptime.report.sentences import place_text

SCHEMA_VERSION = 1
MOST_ROWS = 40
FIRST_OWNERS, FIRST_LINES, FIRST_MODULES, FIRST_SAVINGS = 9, 5, 3, 4
"""Most rows of each kind that a terminal shows."""
MOST_TIMES = 99
"""Largest reported factor of a batch: beyond, it only means that there is room."""
OVERLAP = (
    "These overlap and do not add up. Error: the largest deviation of the remaining peak, in pairs of runs "
    "with and without the change."
)


def answer_of(report: MemoryReport) -> Answer:
    """Answer to `steptime memory`, about the device that held the most memory; documents also show the others."""
    first = report.devices[:1]
    problems = (*report.problems, *(problem for found in report.devices for problem in found.problems))
    cut = tuple(f"Cut: {part}." for found in first for part in found.cut.split("; ") if part)
    others = f", the largest of {len(report.devices)} devices" if len(report.devices) > 1 else ""
    message, held = _headline(report), [f"{device_text(found)}{others}" for found in first]
    charts = [(number, memory_chart(found.over_time)) for number, found in enumerate(report.devices)]
    return Answer(
        title=f"Memory of {report.source}",
        headline=message,
        badge=" ".join(cut),
        head=(f"Memory of {report.source}", *(each for each in held if not message.startswith(each))),
        parts=(
            Section("", tuple(map(Item, _sentences(report)))),
            *(part for found in first for part in _device(found, 0)),
        ),
        notes=tuple(f"Note: {problem}" for problem in dict.fromkeys(problems)),
        more=report.next_command if " -o " in report.next_command else "",
        next_command=report.next_command,
        figures=tuple(figure for number, chart in charts for figure in _figures(number, chart, report.devices[number])),
        details=partial(_details, report),
        data=_data(report),
    )


def _figures(number: int, chart: MemoryChart | None, found: MemoryTriage) -> Iterator[Figure]:
    if chart is not None:
        yield Figure(f"memory-{number}", "Memory over time", "memory.html", chart)
    blocks = block_chart(found.blocks, found.device, found.events, f"allocations-{number}")
    if blocks is not None:
        yield Figure(blocks.identity, "Allocations over time", "blocks.html", blocks)


def _headline(report: MemoryReport) -> str:
    """The cause that will end the job, or has ended it; else the largest owner."""
    return next(_reported(report), f"The memory of {report.source} is unknown.")


def _reported(report: MemoryReport) -> Iterator[str]:
    """Yields everything worth a headline, the most serious first."""
    yield from (f"Leak: {kept_text(each)}" for each in report.holders)
    for found in report.devices:
        if found.failure is not None:
            yield f"Out of memory: {failure_text(found)}"
    for found in report.devices:
        yield from (f"Leak: {leak_text(leak)}" for leak in found.leaks)
    yield from (f"Growth: {each.sentence}" for each in report.growth)
    for found in report.devices[:1]:
        yield f"{device_text(found)}{_most(found)}."


def _most(found: MemoryTriage) -> str:
    """Text of the largest owner: "; most of it activations, 1.2 GiB, at model.py:12"."""
    owned = [entry for entry in by_size(found) if entry[0] < Owner.AWAITING]
    if not owned:
        return ""
    line = next((each for each in found.breakdown.lines if each.source is not None), None)
    where = f"; most at one line: {place(line.source)}, {format_bytes(line.bytes)}" if line is not None else ""
    return f"; the largest part: {LABELS[owned[0][0]]}, {format_bytes(owned[0][1])}{where}"


def _sentences(report: MemoryReport) -> list[str]:
    """Sentences for a headline about the first device, with their savings."""
    headline = _headline(report)
    displayed = [
        each for each in _reported(report) if each != headline and each[: each.find(":")] in ("Leak", "Growth")
    ]
    out = [f"Out of memory: {failure_text(found)}" for found in report.devices[:1] if found.failure is not None]
    fits = [each for found in report.devices[:1] for each in fitting(found)]
    return [*(each for each in out if each != headline), *dict.fromkeys(displayed), *fits]


def memory_tables(report: MemoryReport) -> tuple[Table, ...]:
    """Tables of all devices in the report, starting with the device that held the most memory."""
    every = (part for number, found in enumerate(report.devices) for part in _device(found, number))
    return tuple(part for part in every if isinstance(part, Table) and part.rows)


def _device(found: MemoryTriage, number: int) -> Iterator[Part]:
    breakdown, whole = found.breakdown, max(1, found.breakdown.reserved)
    yield table_of(
        f"owners-{number}", f"By owner, {found.moment}", "", by_size(found),
        word("owner", "owner", lambda entry: LABELS[entry[0]]),
        size("held", "bytes", lambda entry: entry[1], barred=True),
        share("share", "share", lambda entry: entry[1] / whole),
        first=FIRST_OWNERS,
    )  # fmt: skip
    placed = sorted(breakdown.lines, key=lambda line: line.source is None)
    yield table_of(
        f"lines-{number}", "Lines that held most", "", placed,
        size("held", "bytes", lambda line: line.bytes, barred=True),
        word("owner", "owner", lambda line: LABELS[line.owner]),
        source_line("line", lambda line: line.source or UNKNOWN, place),
        integer("blocks", "blocks", lambda line: line.blocks),
        most=MOST_ROWS, first=FIRST_LINES,
    )  # fmt: skip
    yield table_of(
        f"modules-{number}", "Modules whose calls made it", "", breakdown.modules,
        size("held", "bytes", lambda module: module.bytes, barred=True),
        word("owner", "owner", lambda module: LABELS[module.owner]),
        word("module", "module", lambda module: module.path),
        integer("blocks", "blocks", lambda module: module.blocks),
        most=MOST_ROWS, first=FIRST_MODULES,
    )  # fmt: skip
    yield table_of(
        f"savings-{number}", "What would free memory of the peak", OVERLAP, found.savings,
        size("frees", "bytes", lambda saving: saving.frees),
        word("what", "what", lambda saving: saving.name),
        word("error", "error", lambda saving: saving.error),
        word("cost", "cost", lambda saving: saving.cost, room="document"),
        word("how it was estimated", "how", lambda saving: saving.how, room="document"),
        first=FIRST_SAVINGS,
    )  # fmt: skip


def _details(report: MemoryReport) -> Iterator[Part]:
    for number, found in enumerate(report.devices):
        if number:
            reported = (device_text(found), *fitting(found), *([f"Cut: {found.cut}."] if found.cut else ()))
            yield Section(found.device, tuple(map(Item, reported)))
            yield from _device(found, number)
        yield Section("Leaks", tuple(map(Item, _leaks(found))))
        if found.fragmentation is not None and found.fragmentation.free:
            yield _fragments(found.fragmentation, number)
        yield table_of(
            f"blocks-{number}", "Blocks", "The largest allocations, each with the calls that asked for it.",
            sorted(found.blocks, key=lambda each: -each.size),
            size("size", "bytes", lambda each: each.size),
            word("owner", "owner", lambda each: each.owner),
            word("line", "line", lambda each: place(each.source)),
            word("calls", "calls", lambda each: " ← ".join(each.calls), room="page"),
            integer("made at event", "start", lambda each: each.start),
            integer("freed at", "end", lambda each: each.end),
        )  # fmt: skip
        yield table_of(
            f"timeline-{number}", "Timeline", "", found.timeline,
            duration("time", "time_ns", lambda each: each.time),
            integer("event", "event", lambda each: each.event),
            size("live", "live", lambda each: each.live),
            size("reserved", "reserved", lambda each: each.reserved),
        )  # fmt: skip


def _fragments(found: Fragmentation, number: int) -> Table:
    note = (
        f"{format_bytes(found.free)} free in {found.pieces} pieces, {format_bytes(found.in_used)} of it in segments "
        f"that something alive holds; the largest piece is {format_bytes(found.largest)}."
    )
    return table_of(
        f"free-{number}", "Free in the cache", note, found.segments,
        word("segment", "segment", lambda each: f"{each.address:#x}"),
        size("size", "size", lambda each: each.size),
        size("free", "free", lambda each: each.free),
        size("largest piece", "largest", lambda each: each.largest),
    )  # fmt: skip


def device_text(found: MemoryTriage) -> str:
    """Text on the memory that a device held at the moment of its breakdown."""
    live, reserved = format_bytes(found.breakdown.live), format_bytes(found.breakdown.reserved)
    held = f"torch reserved {reserved}" if found.device == "CPU" else f"the process held {reserved}"
    return f"{found.device}, {found.moment}: {live} of tensors; {held}"


UNKNOWN = SourceLine("", 0)
"""The place of what has no frame."""


def place(source: SourceLine | None) -> str:
    if source is None or source == UNKNOWN:
        return "no Python frame was recorded"
    return f"{place_text(source)} {source.function}".strip() if source.file else source.function


def leak_text(leak: Leak) -> str:
    return (
        f"{place(leak.source)} leaks {format_bytes(leak.per_step.value)} in each of {leak.steps} steps "
        f"({leak.blocks:.3g} blocks per step, {format_bytes(leak.held)} so far)"
    )


def failure_text(found: MemoryTriage) -> str:
    failure = found.failure
    assert failure is not None
    where = f" at {place(failure.source)}" if failure.source is not None else ""
    return f"Allocating {format_bytes(failure.asked)}{where} failed. Cause: {failure.obstacle}."


def fitting(found: MemoryTriage) -> tuple[str, ...]:
    """Text on how much larger a batch would fit on the device, with its assumptions; empty if its size is unknown."""
    if found.fit is None or found.capacity is None:
        return ()
    fits = f"Fits {format_bytes(found.capacity)} with 10 % kept free: {_batch(found.fit)} ({checked(found.fit.kind)})."
    return (fits, f"{found.fit.note[:1].upper()}{found.fit.note[1:]}.") if found.fit.note else (fits,)


def _batch(fit: Fit) -> str:
    if fit.most <= 0:
        return "no batch: the memory that does not depend on the batch is larger"
    if fit.most < 1:
        return f"only {format_share(fit.most)} of this batch"
    if fit.least >= MOST_TIMES:
        return f"a batch more than {MOST_TIMES} times as large"
    least, most = f"{fit.least:.2g}", f"{min(fit.most, MOST_TIMES):.2g}"
    return f"a batch {least if least == most else f'{least} to {most}'} times as large"


def kept_text(holder: ReferenceHolder) -> str:
    named = f"{holder.kind} {holder.name}" if holder.kind and holder.name else "an unknown object"
    where = f" grows at {place_text(holder.source)}" if holder.source is not None else " grows"
    size = f"{format_bytes(holder.bytes)} in " if holder.bytes else ""
    count = f"{holder.tensors:.3g} tensor{'s' if holder.tensors > 1 else ''} per step"
    graph = f", with {'their' if holder.tensors > 1 else 'its'} graph" if holder.graph else ""
    return f"{named}{where}: {size}{count}{graph}" if holder.tensors >= 1 else f"{named}{where}: a sum{graph}"


def _leaks(found: MemoryTriage) -> list[str]:
    if found.leaks:
        return [leak_text(leak) for leak in found.leaks]
    if found.steps < 4:
        boundaries = "1 boundary" if found.steps == 1 else f"{found.steps} boundaries"
        return [f"Not examined: the history has {boundaries} of steps, and leaks need four."]
    return [
        (f"None: no line leaks memory in every step ({found.steps} step boundaries, from {found.boundary_source}).")
    ]


def by_size(found: MemoryTriage) -> list[tuple[Owner, int]]:
    """Owners with the bytes that each holds, the largest first."""
    return sorted(found.breakdown.entries, key=lambda entry: -entry[1])


def _data(report: MemoryReport) -> dict[str, Any]:
    """The report as plain data, for programs. Owners are the labels that users see."""
    plain: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **msgspec.to_builtins(report)}
    for breakdown in (device["breakdown"] for device in plain["devices"]):
        breakdown["entries"] = {LABELS[owner]: size for owner, size in breakdown["entries"]}
        for use in (*breakdown["lines"], *breakdown["modules"]):
            use["owner"] = LABELS[use["owner"]]
    return plain
