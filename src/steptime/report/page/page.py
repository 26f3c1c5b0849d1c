"""The report as a page: one file that opens offline anywhere, and shows where the time goes and what to do.

It only displays: every figure on it is the report's. Its surroundings, and the rules that keep it safe, are `frame`.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from steptime.advice.evidence import Case
from steptime.advice.explain import find_rule
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import per_step
from steptime.advice.verdict import BALANCED, UNKNOWN
from steptime.analysis.categories import Category
from steptime.analysis.memory_samples import CPU_PLACE
from steptime.answer.page.frame import whole
from steptime.answer.printable import one_line
from steptime.quantities import format_bytes, format_duration, format_share
from steptime.report import json
from steptime.report.gain import gain_of
from steptime.report.page.charts import flames, kinds_of, roofline_chart, series
from steptime.report.page.forest import forest
from steptime.report.page.over_time import MemoryChart, machine_chart, memory_chart
from steptime.report.page.ranks import heat_map
from steptime.report.page.waterfall import BarSegment, stacked, waterfall
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import (
    gpu_busy_text,
    interval_text,
    left_out_text,
    origin,
    own_cost_text,
    place_text,
    placed,
    price_text,
    roofline_sentences,
    throughput_text,
)
from steptime.report.step_view import StepView
from steptime.report.tables import case_tables, category_tables, replay_tables
from steptime.report.trace_files import TraceFile

MARKUP = 1_000
"""Bytes that a trace takes on the page next to what is in it."""
OPENS = ("<", ":")
"""The one sign of base 85 (RFC 1924) that could start markup, and one that represents it, which base 85 has not."""


@dataclass(frozen=True, slots=True)
class DisplayedTrace:
    """Trace file that the page offers for download. identity: of the HTML element with its content; name: file name for
    saving; content: gzip in base 85, padded, "" if the page does not carry it; length: size of the gzip, bytes."""

    identity: str
    path: str
    name: str
    what: str
    size: str
    content: str
    length: int


def displayed_traces(files: Sequence[TraceFile], room: int) -> tuple[DisplayedTrace, ...]:
    """Trace files as the page offers them. room: bytes that the page has left for content, first come first."""
    displayed = []
    for number, file in enumerate(files):
        content = file.content or b""
        carried = bool(content) and 1.25 * len(content) + MARKUP <= room
        text = base64.b85encode(content, pad=True).decode().replace(*OPENS) if carried else ""
        room -= len(text) + MARKUP if carried else 0
        name = Path(file.path).name
        name = name if name.endswith(".gz") else f"{name}.gz"
        displayed.append(
            DisplayedTrace(f"trace-{number}", file.path, name, file.what, format_bytes(file.size), text, len(content))
        )
    return tuple(displayed)


FIRST = 3
"""Findings on the first screen; the others are below, with all else."""
WHOLE = 1_200_000
"""Bytes of data in the page: of a job of many ranks, the first keeps its figures, the others their categories."""
LARGEST = 2_500_000
"""Bytes of a page: as far as they reach, it carries whole traces."""
OWNERS = "From steps in which torch's profiler recorded every allocation."
OWNERS_OF_CPU = f"{OWNERS} torch does not know earlier allocations there: parameters and more are missing."


@dataclass(frozen=True, slots=True)
class FindingView:
    """Finding as the page shows it. summary: the finding's sentence, "" if the headline already has it. anchor: its
    HTML anchor. per: unit of the saving, in words. bar: saving, percent of the step. page: sections of the rule's page
    as (heading, paragraphs), each paragraph a tuple of (kind, text) spans of kind "code" or "text"."""

    finding: Finding
    summary: str
    anchor: str
    word: str
    saving: str
    per: str
    share: str
    interval: str
    bar: float
    place: str
    command: str
    title: str
    page: tuple[tuple[str, tuple[tuple[tuple[str, str], ...], ...]], ...]


def render(report: Report) -> str:
    """Whole page of a report, as HTML."""
    process = placed(report.processes[0])
    case, cut = process.case, process.step_view
    findings = tuple(
        _notify(finding, process, sum(other.code == finding.code for other in process.findings[:at]))
        for at, finding in enumerate(process.findings)
    )
    tables = case_tables(case)
    fixed: dict[str, object] = {
        "report": report,
        "gain": gain_of(report),
        "process": process,
        "step": case.step,
        "findings": findings,
        "first": min(FIRST, len(findings)),
        "waterfall": waterfall(case),
        "phases": _phases(case),
        "series": series(process),
        "timeline": cut if cut is not None and cut.events else None,
        "categories_in_view": _categories_in_view(cut) if cut is not None else (),
        "flames": flames(process.flame),
        "flame_kinds": kinds_of(process.flame),
        "stacks": process.flame is not None and process.flame.stacks,
        "forest": forest(
            report.trials, case.loader.batch_size if case.loader is not None else None, case.step.duration.value
        ),
        "subject": _subject(process),
        "roofline": roofline_chart(case),
        "memory": memory_chart(process.memory),
        "machine": machine_chart(process.machine_over_time),
        "owners": _owners(process),
        "memory_command": _memory_command(report),
        "roofline_sentences": roofline_sentences(case),
        "categories": category_tables(case),
        "replay": replay_tables(case),
        "tables": tuple(table for table in tables if not table.depths),
        "modules": next((table for table in tables if table.depths), None),
        "heat": heat_map(report),
        "facts": _facts(report),
    }
    title, data = one_line(report.environment.command or report.source), _data(report)
    traces = displayed_traces(process.traces, 0)
    page = whole("page.html", title=title, data=data, traces=traces, **fixed)
    fitting = displayed_traces(process.traces, LARGEST - len(page.encode()))
    return page if fitting == traces else whole("page.html", title=title, data=data, traces=fitting, **fixed)


def _subject(process: ProcessReport) -> str:
    """The category that the headline is about: of what it starts with; "" where that is none alone."""
    verdict = process.verdict
    begun = next((each for each in process.findings if verdict.sentence.startswith(each.summary)), None)
    if begun is not None:
        return begun.category
    return verdict.bottleneck if verdict.bottleneck not in (BALANCED, UNKNOWN) else ""


def _owners(process: ProcessReport) -> MemoryChart | None:
    found = process.memory_by_owner
    if found is not None and found.place == CPU_PLACE:
        return memory_chart(replace(found, place="the CPU"), "owners", "Memory by owner", OWNERS_OF_CPU)
    return memory_chart(found, "owners", "Memory by owner", OWNERS)


def _memory_command(report: Report) -> str:
    process = report.processes[0]
    own = process.traces[0].path if process.traces and process.case.step.mode == "trace" else report.source
    return f"steptime memory {shlex.quote(own)} -o memory.html"


def _phases(case: Case) -> tuple[BarSegment, ...]:
    parts = [(use.name, use.duration.value) for use in case.phases if use.duration.value > 0]
    whole = sum(spent for _, spent in parts)
    return stacked(parts, 100 / whole) if whole else ()


def _categories_in_view(step_view: StepView) -> tuple[str, ...]:
    present = {label.name for label in step_view.labels}
    return tuple(name for name in (category.name.lower() for category in Category) if name in present)


def _facts(report: Report) -> list[tuple[str, str]]:
    environment, process = report.environment, report.processes[0]
    step = process.case.step
    machine = process.case.machine
    counts = f"{step.total} in total, {step.steady} steady"
    left_out = left_out_text(process)
    ranks = environment.ranks if process.rank is not None else 1
    named = (
        ("Job", environment.ended),
        ("Device", environment.device or step.device),
        ("Host", environment.host),
        ("Peaks", f"{machine.name}, {origin(machine)}" if machine is not None else ""),
        ("torch", environment.torch),
        ("Python", environment.python),
        ("steptime", environment.steptime),
        ("Ranks", str(environment.ranks) if environment.ranks > 1 else ""),
        ("Steps", f"{counts}; excluded: {left_out}" if left_out else counts),
        ("Steps found by", step.how),
        ("Throughput", throughput_text(process.throughput, step.device, ranks)),
        ("GPU", gpu_busy_text(process.case)),
        ("Price", price_text(report)),
        ("steptime's own cost", own_cost_text(process) or "none: it read a trace that existed"),
        ("Source", report.source),
    )
    return [(name, value) for name, value in named if value]


def _notify(finding: Finding, process: ProcessReport, before: int) -> FindingView:
    """before: findings of its code above it."""
    step, saving = process.case.step.duration.value, finding.savings
    rule = find_rule(finding.code)
    return FindingView(
        finding=finding,
        summary=finding.summary if finding.summary not in process.verdict.sentence else "",
        anchor=f"{finding.code}-{before + 1}" if before else finding.code,
        word="" if finding.weight is Weight.FINDING else finding.weight.value,
        saving=format_duration(saving.value) if saving is not None else "",
        per=per_step(process.case.step),
        share=format_share(saving.value / step) if saving is not None and step else "",
        interval=interval_text(saving) if saving is not None else "",
        bar=min(100 * saving.value / step, 100.0) if saving is not None and step else 0.0,
        place=place_text(finding.source) if finding.source is not None else "",
        command=f"steptime explain {finding.code}",
        title=rule.page.title if rule is not None else "",
        page=tuple((heading, _paragraphs(text)) for heading, text in rule.page.sections) if rule is not None else (),
    )


def _paragraphs(text: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Paragraphs of spans, from the little Markdown that pages of rules are written in."""
    return tuple(
        tuple(
            ("code" if number % 2 else "text", span)
            for number, span in enumerate(re.split("`([^`]+)`", paragraph))
            if span
        )
        for paragraph in re.split(r"\n\s*\n", text)
    )


def _data(report: Report) -> str:
    """The report as JSON, within the page's budget."""
    text = _compact(report)
    if len(text) > WHOLE:
        text = _compact(replace(report, processes=(report.processes[0], *map(_outline, report.processes[1:]))))
    return text


def _compact(report: Report) -> str:
    return msgspec.json.format(json.render(report).encode(), indent=-1).decode()


def _outline(process: ProcessReport) -> ProcessReport:
    case = Case(process.case.step, process.case.categories, rank=process.case.rank)
    return replace(process, case=case, step_ns=(), steady=())
