"""For notebooks and scripts: `steptime.load(path)` gives what a recording says, and shows it as the first screen.

One law: a notebook's output is on other people's page. There is no script in it, no style sheet and no request, its
colours suit light and dark, and what strangers wrote is escaped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import jinja2

from steptime.advice.rule import Finding, Weight
from steptime.diagnosis import diagnose_paths
from steptime.quantities import format_duration, format_share, format_source
from steptime.report import text
from steptime.report.page.pictures import GREY, TONES
from steptime.report.page.waterfall import waterfall
from steptime.report.printable import one_line, printable
from steptime.report.report import Report

__all__ = ["Loaded", "load"]

FIRST = 3
"""Findings that are shown."""
_TEMPLATE = """
<div style="max-width:60em;font-family:system-ui,sans-serif;line-height:1.4;font-variant-numeric:tabular-nums">
<div style="opacity:.7;font-size:.85em">{{ job }}{% if facts %} · {{ facts }}{% endif %}</div>
<div style="font-size:1.25em;font-weight:600;margin:.3em 0 .2em">{{ sentence }}</div>
<div style="margin:0 0 .6em">{{ badge }}</div>
<div style="margin-bottom:.2em">A step takes <b>{{ step }}</b> ({{ interval }})</div>
{% for fall in falls %}
<div style="display:flex;align-items:center;gap:.6em;margin:2px 0">
<div style="width:7.5em;overflow:hidden;text-overflow:ellipsis">{{ fall.name }}</div>
<div style="flex:1 1 0;height:1em;position:relative;background:rgba(128,128,128,.12)" title="{{ fall.interval }}"><div style="position:absolute;height:100%;left:{{ "%.2f" | format(fall.begin) }}%;width:{{ "%.2f" | format(fall.kept + fall.recoverable) }}%;background:{{ tones.get(fall.name, grey) }}"></div></div>
<div style="width:5em;text-align:right">{{ fall.duration }}</div><div style="width:4em;text-align:right;opacity:.7">{{ fall.share }}</div></div>
{% endfor %}
{% for finding in findings %}
<div style="border-top:1px solid rgba(128,128,128,.35);margin-top:.6em;padding-top:.4em"><span style="opacity:.7">{{ finding.code }}</span> <b>{{ finding.name }}</b>{% if finding.saving %} · up to {{ finding.saving }} a step{% endif %}
<div>{{ finding.summary }}</div>
{% if finding.place %}<div style="font-family:ui-monospace,monospace;font-size:.88em;opacity:.85">{{ finding.place }}</div>{% endif %}
<div>→ {{ finding.advice }}</div></div>
{% endfor %}
<div style="border-top:1px solid rgba(128,128,128,.35);margin-top:.6em;padding-top:.4em">Next: <code>{{ next }}</code></div>
</div>
"""  # noqa: E501 - white space between these elements would show


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a recording, traces or a saved report say. `report`: all of it, as data; `str()`: the text of a diagnosis;
    last in a notebook's cell: the page's first screen."""

    report: Report

    def __str__(self) -> str:
        return text.render(self.report)

    def __repr__(self) -> str:
        return (
            f"<steptime.load({one_line(self.report.source)!r}): {one_line(self.report.processes[0].verdict.sentence)}>"
        )

    def _repr_html_(self) -> str:
        """For Jupyter and its like."""
        return first_screen(self.report)


def load(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Loaded:
    """What the recording, trace or saved report at `path` says; several paths are traces of one job's ranks. Raises
    SteptimeError, in one sentence, where it cannot be read."""
    return Loaded(diagnose_paths([os.fspath(each) for each in (path, *more)]))


def first_screen(report: Report) -> str:
    """Verdict, categories, findings and the next command as HTML with nothing but inline style."""
    process = report.processes[0]
    environment, step = report.environment, process.case.step
    fall = waterfall(process.case)
    facts = (f"torch {environment.torch}" if environment.torch else "", environment.device, environment.host)
    html = _template().render(
        job=one_line(environment.command or report.source),
        facts=" · ".join(filter(None, facts)),
        sentence=process.verdict.sentence,
        badge=process.verdict.badge,
        step=format_duration(step.duration.value),
        interval=_interval(report),
        falls=fall.falls if fall is not None else (),
        findings=[_told(each, step.duration.value) for each in process.findings[:FIRST]],
        next=report.next_command,
        tones=TONES,
        grey=GREY,
    )
    return html.encode("utf-8", "backslashreplace").decode()


def _interval(report: Report) -> str:
    step = report.processes[0].case.step
    if step.duration.samples < 2:
        return "one step: its spread is not known"
    low, high = format_duration(step.duration.low), format_duration(step.duration.high)
    return f"95 % interval {low} to {high}, {step.steady} steady steps"


def _told(finding: Finding, step: float) -> dict[str, str]:
    saving = finding.savings
    share = f" ({format_share(saving.value / step)})" if saving is not None and step else ""
    place = ""
    if finding.source is not None:
        place = f"{format_source(finding.source)}{f': {finding.source.text}' if finding.source.text else ''}"
    return {
        "code": finding.code,
        "name": f"{finding.name}{'' if finding.weight is Weight.FINDING else f' ({finding.weight.value})'}",
        "saving": f"{format_duration(saving.value)}{share}" if saving is not None else "",
        "summary": finding.summary,
        "place": place,
        "advice": finding.advice,
    }


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.from_string(_TEMPLATE.strip())
