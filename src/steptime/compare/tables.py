"""The tables of a comparison."""

from __future__ import annotations

from collections.abc import Callable

from steptime.answer.printable import shorten
from steptime.answer.tables import Cell, Column, Table, count, duration, integer, interval, number, size, table_of, word
from steptime.compare.cause import relative, relative_interval
from steptime.compare.comparison import ComparedRun, Comparison, Difference, Fate
from steptime.quantities import (
    Estimate,
    format_bytes,
    format_change,
    format_duration,
    format_samples,
    format_share,
    with_sign,
)

Words = Callable[[float, str], str]
LONGEST = 100
"""Most characters of a name in Markdown."""


def settings_table(comparison: Comparison) -> Table:
    return table_of(
        "settings-table", "Settings that differ", "", comparison.settings,
        word("", "name", lambda setting: setting.name),
        word("before", "before", lambda setting: setting.before),
        word("now", "now", lambda setting: setting.after),
    )  # fmt: skip


def runs_table(comparison: Comparison) -> Table:
    """Table of all runs, one row each. With more than two runs, each step is compared with the first run's."""
    several = len(comparison.runs) > 2
    return table_of(
        "runs-table", "Runs", "In the order given.", list(enumerate(comparison.runs, 1)),
        integer("", "number", lambda run: run[0]),
        word("run", "run", lambda run: run[1].label),
        word("commit", "commit", lambda run: run[1].commit),
        integer("steps", "steps", lambda run: run[1].steady),
        duration("per step", "step_ns", lambda run: run[1].step.value),
        number("throughput", "samples_per_s", lambda run: run[1].samples_per_s, format_samples),
        word("vs. the first", "against_the_first", lambda run: _against(run[1]) if several else ""),
        word("bound by", "bottleneck", lambda run: run[1].bottleneck, room="document"),
        size("memory", "peak_bytes", lambda run: run[1].peak_bytes),
        count("kernels", "kernels", lambda run: run[1].kernels),
        size("growth per step", "growth_bytes", lambda run: run[1].growth or None),
    )  # fmt: skip


def difference_tables(comparison: Comparison) -> tuple[Table, ...]:
    """Tables of what changed: the step with its categories, then its parts, then the findings. Only tables with
    rows."""
    every = (_differences(comparison), _pieces(comparison), _findings(comparison))
    return tuple(table for table in every if table.rows)


def _differences(comparison: Comparison) -> Table:
    every = (comparison.step, comparison.sample, *comparison.parts, comparison.memory)
    return table_of(
        "differences", f"Step, {comparison.by} and memory", "", [each for each in every if each is not None],
        word("", "name", lambda each: each.name, kind="category"),
        _estimated("before", lambda each: each.before, amount),
        _estimated("now", lambda each: each.after, amount),
        _estimated("change", lambda each: each.change, signed),
        interval("95 % interval", lambda each: each.change, _interval, names=("change_low", "change_high")),
        _estimated("relative", relative, signed, "document"),
        word("beyond noise?", "beyond_noise",
             lambda each: each.outcome.value if each.change is not None else "not measured on both sides"),
    )  # fmt: skip


def _pieces(comparison: Comparison) -> Table:
    note = "Changes of at least 1 % of the step, as means over the steps."
    return table_of(
        "pieces", "Parts of the step", note, comparison.pieces,
        word("", "name", lambda piece: piece.fate.value),
        word("kind", "kind", lambda piece: piece.kind),
        word("name", "name", lambda piece: piece.name, kind="code", short=lambda name: shorten(name, LONGEST)),
        duration("before", "before", lambda piece: piece.before, room="document"),
        duration("now", "now", lambda piece: piece.after, room="document"),
        Column("change", "change", lambda piece: Cell(signed(piece.change, "ns"), piece.change)),
        count("calls before", "calls_before", lambda piece: piece.calls_before),
        count("calls now", "calls_now", lambda piece: piece.calls_after),
    )  # fmt: skip


def _findings(comparison: Comparison) -> Table:
    return table_of(
        "findings-table", "Findings", "Only on one side.", comparison.findings,
        word("", "name", lambda finding: "found now" if finding.fate is Fate.APPEARED else "no longer found"),
        word("code", "code", lambda finding: finding.code),
        word("name", "name", lambda finding: finding.name),
        word("finding", "finding", lambda finding: finding.summary),
    )  # fmt: skip


def _against(run: ComparedRun) -> str:
    against = run.against_first
    return f"{relative_interval(against)}: {against.reason or against.outcome.value}" if against is not None else ""


def _estimated(
    title: str, get: Callable[[Difference], Estimate | None], words: Words, room: str = ""
) -> Column[Difference]:
    def cell(difference: Difference) -> Cell:
        found = get(difference)
        return Cell("", "") if found is None else Cell(words(found.value, found.unit), found.value)

    return Column(title, title, cell, room=room)


def _interval(change: Estimate) -> str:
    return f"{signed(change.low, change.unit)} to {signed(change.high, change.unit)}"


def amount(value: float, unit: str) -> str:
    """Quantity as text: "1" as a percentage, "bytes" as a size, "ns" as a duration, by its unit."""
    return {"1": format_share, "bytes": format_bytes}.get(unit, format_duration)(value)


def signed(value: float, unit: str) -> str:
    """Signed quantity as text: "+1.2 ms", "−3.4 MiB", "0 %"."""
    if unit == "1":
        return format_change(value)
    text = amount(abs(value), unit)
    return text if text.startswith("0 ") else with_sign(value, text)
