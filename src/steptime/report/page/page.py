"""The report as a page: one file that opens offline anywhere, and shows where the time goes and what to do.

One law: what strangers wrote (names of kernels, paths, lines of source) is text. The template escapes everything, and
the page's own policy lets nothing run but our one script and asks no network for anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import jinja2
import msgspec
from markupsafe import Markup

from steptime.findings.case import Case
from steptime.findings.explain import find_rule
from steptime.findings.finding import Finding, Weight
from steptime.quantities import format_duration, format_share, format_source
from steptime.report import json
from steptime.report.device import roofline_sentences
from steptime.report.page.ranks import HeatMap, heat_map
from steptime.report.page.roofline_chart import RooflineChart, roofline_chart
from steptime.report.page.series import Series, series
from steptime.report.page.tables import Grid, account_grids, grids, replay_grids
from steptime.report.page.waterfall import Segment, Waterfall, interval_text, stacked, waterfall
from steptime.report.printable import one_line, printable
from steptime.report.report import ProcessReport, Report
from steptime.report.roofline import origin
from steptime.report.text import cost_text

FIRST = 3
"""Findings on the first screen; the others are below, with all else."""
WHOLE = 1_200_000
"""Bytes of data in the page: of a job of many ranks, the first one keeps its figures and the others their accounts."""
_TONES = {"compute", "communication", "copy", "input", "sync", "compile", "launch", "host", "unexplained"}
_BOUNDS = {"memory", "compute", "latency"}
"""Accounts and bounds that have a colour of their own; whatever else a report may name shares one."""
_DANGEROUS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
"""What could end a script element, or a line of script: JSON may spell it otherwise."""


@dataclass(frozen=True, slots=True)
class Told:
    """A finding as the page tells it. bar: percent of the step at stake. page: sections of its rule, (heading,
    paragraphs); a paragraph is (kind, text) spans, "code" or "text"."""

    finding: Finding
    word: str
    stake: str
    share: str
    interval: str
    bar: float
    place: str
    command: str
    title: str
    page: tuple[tuple[str, tuple[tuple[tuple[str, str], ...], ...]], ...]


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the template shows of the process in front."""

    report: Report
    process: ProcessReport
    told: tuple[Told, ...]
    first: int
    waterfall: Waterfall | None
    phases: tuple[Segment, ...]
    series: Series | None
    roofline: RooflineChart | None
    roofline_sentences: tuple[str, ...]
    accounts: tuple[Grid, ...]
    replay: tuple[Grid, ...]
    grids: tuple[Grid, ...]
    heat: HeatMap | None
    facts: tuple[tuple[str, str], ...]
    title: str


def render(report: Report) -> str:
    """The whole page."""
    style, script = _asset("style.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template("page.html").render(
        view=view_of(report), policy=policy, style=Markup(style), script=Markup(script), data=Markup(_data(report))
    )  # fmt: skip
    return page.encode("utf-8", "backslashreplace").decode()


def view_of(report: Report) -> View:
    """What the template needs, in words and in percent."""
    process = report.processes[0]
    case = process.case
    told = tuple(_tell(finding, case) for finding in process.findings)
    return View(
        report=report,
        process=process,
        told=told,
        first=min(FIRST, len(told)),
        waterfall=waterfall(case),
        phases=_phases(case),
        series=series(process),
        roofline=roofline_chart(case),
        roofline_sentences=tuple(roofline_sentences(case)),
        accounts=account_grids(case),
        replay=replay_grids(case),
        grids=grids(case),
        heat=heat_map(report),
        facts=tuple(_facts(report)),
        title=_job(report),
    )


def _job(report: Report) -> str:
    return one_line(report.environment.command or report.source)


def _phases(case: Case) -> tuple[Segment, ...]:
    parts = [(use.name, use.duration.value) for use in case.phases if use.duration.value > 0]
    whole = sum(spent for _, spent in parts)
    return stacked(parts, 100 / whole) if whole else ()


def _facts(report: Report) -> list[tuple[str, str]]:
    """Machine, versions and what the tool cost."""
    environment, process = report.environment, report.processes[0]
    step = process.case.step
    machine = process.case.machine
    aside = step.total - step.steady - step.warm_up
    counts = ((step.total, "in all"), (step.steady, "steady"), (step.warm_up, "warm-up"), (aside, "set aside"))
    cost = process.cost
    spent = cost_text(cost, step.duration.value).removeprefix("Cost:").strip() if cost is not None else ""
    named = (
        ("Device", environment.device or step.device),
        ("Host", environment.host),
        ("Ceilings", f"{machine.name}, {origin(machine)}" if machine is not None else ""),
        ("torch", environment.torch),
        ("Python", environment.python),
        ("steptime", environment.steptime),
        ("Ranks", str(environment.ranks) if environment.ranks > 1 else ""),
        ("Steps", ", ".join(f"{count} {what}" for count, what in counts if count > 0)),
        ("Steps found by", step.how),
        ("Cost of the tool", spent or "none: it read a trace that existed"),
        ("Source", report.source),
    )
    return [(name, value) for name, value in named if value]


def _tell(finding: Finding, case: Case) -> Told:
    step, stake = case.step.duration.value, finding.at_stake
    rule = find_rule(finding.code)
    return Told(
        finding=finding,
        word="" if finding.weight is Weight.FINDING else finding.weight.value,
        stake=format_duration(stake.value) if stake is not None else "",
        share=format_share(stake.value / step) if stake is not None and step else "",
        interval=interval_text(stake) if stake is not None else "",
        bar=min(100 * stake.value / step, 100.0) if stake is not None and step else 0.0,
        place=format_source(finding.source) if finding.source is not None else "",
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
    """The report as JSON for a script element: nothing in it can end that element."""
    text = _compact(report)
    if len(text) > WHOLE:
        text = _compact(replace(report, processes=(report.processes[0], *map(_outline, report.processes[1:]))))
    return text.translate(_DANGEROUS)


def _compact(report: Report) -> str:
    return msgspec.json.format(json.render(report).encode(), indent=-1).decode()


def _outline(process: ProcessReport) -> ProcessReport:
    case = Case(process.case.step, process.case.accounts, rank=process.case.rank)
    return replace(process, case=case, step_ns=(), steady=())


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["raw"] = lambda value: value if isinstance(value, str) else f"{value:.10g}"
    environment.filters["percent"] = lambda value: f"{value:.2f}%"
    environment.filters["tone"] = lambda name: f"tone-{name}" if name in _TONES else "tone-other"
    environment.filters["bound"] = lambda name: name if name in _BOUNDS else "other"
    return environment


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a policy names a piece of script or style that may stand in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
