"""The report as Markdown: everything that is known, for an issue, a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from steptime.advice.rule import Finding, Weight
from steptime.quantities import format_duration, format_share
from steptime.report.printable import one_line, printable
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import (
    cost_text,
    gpu_busy_text,
    interval_text,
    left_out_text,
    placed,
    price_text,
    roofline_sentences,
    source_text,
    step_text,
    throughput_text,
)
from steptime.report.tables import (
    MOST_RANKS,
    Cell,
    Column,
    Table,
    case_tables,
    category_tables,
    process_table,
    rank_tables,
    replay_tables,
    trial_table,
)
from steptime.report.trials import TrialReport

MOST_ROWS = 16
"""Rows of a table; what is behind them is in the JSON."""


def render(report: Report) -> str:
    """The whole document."""
    lines = [f"# Where the time of a training step goes: {prose(report.environment.command or report.source)}", ""]
    lines += _environment(report)
    several = len(report.processes) > 1
    if several:
        for table in (process_table(report), *rank_tables(report.ranks, len(report.processes))):
            lines += titled_table(table)
    for process in report.processes[:MOST_RANKS]:
        lines += _process(process, several=several)
    if report.trials is not None:
        lines += [*titled_table(trial_table(report.trials)), *_patch(report.trials)]
    lines += _list("Left out", report.problems)
    lines += ["## Next", "", _fence(report.next_command), ""]
    return printable("\n".join(lines))


def _patch(trials: TrialReport) -> Iterator[str]:
    if trials.diff:
        lines = map(printable, trials.diff.splitlines())
        yield from ("## The patch that was run", "", *(f"    {line}" for line in lines), "")


def _environment(report: Report) -> Iterator[str]:
    environment = report.environment
    facts = (
        ("Source", report.source),
        ("Host", environment.host),
        ("Device", environment.device),
        ("Python", environment.python),
        ("torch", environment.torch),
        ("steptime", environment.steptime),
        ("Ranks", str(environment.ranks)),
        ("Job", environment.ended),
        ("Price", price_text(report)),
    )
    yield from ("|  |  |", "| --- | --- |")
    yield from (f"| {name} | {prose(value)} |" for name, value in facts if value)
    yield ""


def _process(process: ProcessReport, *, several: bool) -> Iterator[str]:
    case, process = process.case, placed(process)
    if several:
        yield from (f"## {prose(process.name)}", "")
    yield from (_step(process), "")
    if process.throughput is not None:
        yield from (f"{throughput_text(process.throughput, case.step.device)}.", "")
    if case.step.gpu_busy is not None:
        yield from (f"{gpu_busy_text(case)}.", "")
    yield from (f"**{prose(process.verdict.sentence)}**", "", prose(process.verdict.badge), "")
    for table in category_tables(case):
        yield from titled_table(table)
    if case.roofline is not None:
        yield from (" ".join(map(prose, roofline_sentences(case))), "")
    if process.findings:
        yield from ("## Findings", "")
    for finding in process.findings:
        yield from _finding(finding, case.step.duration.value)
    for table in (*case_tables(case), *replay_tables(case)):
        yield from titled_table(table)
    yield from _list("Notes", process.notes)
    yield from _list("Not examined", (f"{code}: {reason}" for code, reason in process.not_examined))
    yield from _list("Rules and plug-ins that failed", (f"{code}: {why}" for code, why in process.failed))
    if process.cost is not None:
        yield from (f"steptime's own cost: {prose(cost_text(process.cost, case.step.duration.value))}.", "")


def _step(process: ProcessReport) -> str:
    step, left_out = process.case.step, left_out_text(process)
    found = f"Steps: {prose(step.how)}." if step.how else f"Boundaries from the {prose(step.mode)}."
    aside = f"; left out: {left_out}" if left_out else ""
    return f"**Step {step_text(step)}** ({step.total} in all{aside}), device {prose(step.device)}. {found}"


def _finding(finding: Finding, step: float) -> Iterator[str]:
    weight = "" if finding.weight is Weight.FINDING else f" ({finding.weight.value})"
    yield from (f"### {prose(finding.code)} {prose(finding.name)}{weight}", "", prose(finding.summary), "")
    if finding.savings is not None:
        saving = finding.savings
        share = format_share(saving.value / step)
        yield from (f"To be saved: {format_duration(saving.value)} a step ({share}; {interval_text(saving)}).", "")
    if finding.source is not None:
        yield from (_code(source_text(finding.source)), "")
    yield from (prose(finding.advice), "")
    yield from (f"- {prose(sentence)}" for sentence in finding.evidence)
    if finding.evidence:
        yield ""


def _list(title: str, sentences: Iterable[str]) -> list[str]:
    items = [f"- {prose(sentence)}" for sentence in sentences]
    return [f"## {title}", "", *items, ""] if items else []


def titled_table(table: Table) -> Iterator[str]:
    """A table under its title, with at most MOST_ROWS rows and without the columns that need much room; nothing where
    it has no rows."""
    if not table.rows:
        return
    displayed = [place for place, column in enumerate(table.columns) if not column.detail]
    rows, count = _displayed_rows(table), len(table.rows) + table.hidden
    number = f" ({len(rows)} of {count})" if len(rows) < count else ""
    yield from (f"## {prose(table.title)}{number}", "")
    if table.note:
        yield from (prose(table.note), "")
    yield _row(table.columns[place].title for place in displayed)
    yield _row("---:" if table.columns[place].number else "---" for place in displayed)
    for row in rows:
        yield _row(_cell(table.columns[place], row[place]) for place in displayed)
    yield ""


def _displayed_rows(table: Table) -> list[tuple[Cell, ...]]:
    """The first MOST_ROWS; of a tree, those that lie no deeper than leaves room for whole levels."""
    rows = list(table.rows)
    if len(rows) > MOST_ROWS and table.depths:
        depths = sorted(table.depths)
        deepest = depths[MOST_ROWS] - 1
        rows = [row for row, depth in zip(rows, table.depths, strict=True) if depth <= max(deepest, depths[0])]
    return rows[:MOST_ROWS]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(column: Column[Any], cell: Cell) -> str:
    text = cell.short or cell.text
    return _code(text) if column.kind == "source" and text else prose(text)


def prose(text: str) -> str:
    """A stranger's string as plain Markdown text: nothing in it is markup. Underscores inside words are none."""
    return re.sub(r"([\\`*\[\]<>|#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", one_line(text))


def _code(text: str) -> str:
    """A stranger's string as a code span that also stands in a table."""
    line = one_line(text).replace("|", "\\|")
    ticks = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _fence(command: str) -> str:
    ticks = "`" * max(3, max(map(len, re.findall("`+", command)), default=0) + 1)
    return f"{ticks}sh\n{one_line(command)}\n{ticks}"
