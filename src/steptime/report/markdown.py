"""The report as Markdown: everything that is known, for an issue, a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from steptime.advice.evidence import Case, CategoryUse
from steptime.advice.rule import Finding, Weight
from steptime.quantities import Estimate, format_bytes, format_duration, format_share
from steptime.report.printable import one_line, printable
from steptime.report.report import ProcessReport, Report
from steptime.report.tables import MOST_RANKS, Table, device_tables, rank_table, rank_tables, roofline_sentences
from steptime.report.text import cost_text, source_text

_SHOWN = 15
"""Rows of the long tables: lines and operators."""


def render(report: Report) -> str:
    """The whole document."""
    lines = [f"# Where the time of a training step goes: {prose(report.environment.command or report.source)}", ""]
    lines += _environment(report)
    several = len(report.processes) > 1
    if several:
        lines += _titled(rank_table(report))
        for table in rank_tables(report.ranks, len(report.processes)):
            lines += _titled(table)
    for process in report.processes[:MOST_RANKS]:
        lines += _process(process, several=several)
    lines += _list("Left out", report.problems)
    lines += ["## Next", "", _fence(report.next_command), ""]
    return printable("\n".join(lines))


def _environment(report: Report) -> list[str]:
    environment = report.environment
    facts = (
        ("Source", report.source),
        ("Host", environment.host),
        ("Device", environment.device),
        ("Python", environment.python),
        ("torch", environment.torch),
        ("steptime", environment.steptime),
        ("Ranks", str(environment.ranks)),
    )
    return [*table_lines(("", ""), ((name, value) for name, value in facts if value)), ""]


def _process(process: ProcessReport, *, several: bool) -> Iterator[str]:
    if several:
        yield from (f"## {prose(process.name)}", "")
    yield from _step(process.case)
    yield from (f"**{prose(process.verdict.sentence)}**", "", prose(process.verdict.badge), "")
    yield from _categories("Category", process.case.categories, process.case)
    yield from _categories("Phase", process.case.phases, process.case)
    yield from _paragraph(roofline_sentences(process.case))
    yield from _findings(process)
    for table in device_tables(process.case):
        yield from _titled(table)
    yield from _lines(process.case)
    yield from _operators(process.case)
    yield from _segments(process.case)
    yield from _list("Notes", process.notes)
    yield from _list("Not examined", (f"{code}: {reason}" for code, reason in process.not_examined))
    yield from _list("Rules and plug-ins that failed", (f"{code}: {why}" for code, why in process.failed))
    if process.cost is not None:
        profiled = f"{process.cost.profiled_steps} steps profiled in {format_duration(process.cost.profile_ns)}"
        yield from (f"{prose(cost_text(process.cost, process.case.step.duration.value))}; {profiled}.", "")


def _step(case: Case) -> Iterator[str]:
    step = case.step
    steps = f"mean of {step.steady} steady steps" if step.steady > 1 else "one step: its spread is not known"
    yield from (
        f"**{format_duration(step.duration.value)}** a step ({_interval(step.duration)}, {steps}; {step.total} in all, "
        f"{step.warm_up} of them warm-up), device {prose(step.device)}. "
        + (f"Steps: {prose(step.how)}." if step.how else f"Boundaries from the {prose(step.mode)}."),
        "",
    )


def _titled(table: Table) -> list[str]:
    return [f"## {prose(table.title)}", "", *table_lines(table.header, table.rows), ""]


def _paragraph(sentences: list[str]) -> tuple[str, ...]:
    return (" ".join(map(prose, sentences)), "") if sentences else ()


def _interval(estimate: Estimate) -> str:
    if estimate.samples == 1:
        return "one value"
    return f"{format_duration(estimate.low)} to {format_duration(estimate.high)}"


def _categories(title: str, categories: tuple[CategoryUse, ...], case: Case) -> list[str]:
    if not categories:
        return []
    step = case.step.duration.value
    rows = (
        (
            category.name,
            format_duration(category.duration.value),
            format_share(category.duration.value / step),
            _interval(category.duration),
            format_duration(category.recoverable.value),
        )
        for category in categories
    )
    return [*table_lines((title, "a step", "share", "95 % interval", "recoverable"), rows), ""]


def _findings(process: ProcessReport) -> Iterator[str]:
    if process.findings:
        yield from ("## Findings", "")
    for finding in process.findings:
        yield from _finding(finding, process.case.step.duration.value)


def _finding(finding: Finding, step: float) -> Iterator[str]:
    word = "" if finding.weight is Weight.FINDING else f" ({finding.weight.value})"
    yield from (f"### {prose(finding.code)} {prose(finding.name)}{word}", "", prose(finding.summary), "")
    if finding.savings is not None:
        saving = finding.savings
        share = format_share(saving.value / step)
        yield from (f"To be saved: {format_duration(saving.value)} a step ({share}; {_interval(saving)}).", "")
    if finding.source is not None:
        yield from (_code(source_text(finding.source)), "")
    yield from (prose(finding.advice), "")
    yield from (f"- {prose(sentence)}" for sentence in finding.evidence)
    if finding.evidence:
        yield ""


def _lines(case: Case) -> list[str]:
    if not case.lines:
        return []
    rows = (
        (_code(source_text(line.source)), line.role, *map(format_duration, (line.duration.value, line.host.value)))
        for line in sorted(case.lines, key=lambda line: -line.duration.value)[:_SHOWN]
    )
    return ["## Lines of the loop", "", *table_lines(("line", "role", "a step", "of it host"), rows, code=True), ""]


def _operators(case: Case) -> list[str]:
    if not case.operators:
        return []
    rows = (
        (
            operator.name,
            f"{operator.calls:.4g}",
            format_duration(operator.duration),
            operator.bound if case.machine is not None else "",
            f"{operator.flops:.3g}" if operator.flops is not None else "",
            format_bytes(operator.bytes) if operator.bytes is not None else "",
        )
        for operator in sorted(case.operators, key=lambda operator: -operator.duration)[:_SHOWN]
    )
    header = ("operator", "calls a step", "a step", "bound by", "FLOP", "bytes")
    return ["## Operators", "", *table_lines(header, rows), ""]


def _segments(case: Case) -> list[str]:
    if not case.segments:
        return []
    rows = (
        (segment.kind, str(segment.count), format_duration(segment.duration), format_share(segment.share))
        for segment in case.segments
    )
    return ["## Between the steps", "", *table_lines(("what", "times", "in all", "of the run"), rows), ""]


def _list(title: str, sentences: Iterable[str]) -> list[str]:
    items = [f"- {prose(sentence)}" for sentence in sentences]
    return [f"## {title}", "", *items, ""] if items else []


def table_lines(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, code: bool = False) -> Iterator[str]:
    """A table; where `code` is set, the first column is Markdown already."""
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    for first, *others in rows:
        cells = [first if code else prose(first), *map(prose, others)]
        yield "| " + " | ".join(cells) + " |"


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
