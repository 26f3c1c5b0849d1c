"""For notebooks and scripts: `steptime.load(path)` gives what a recording, a trial, a comparison or a snapshot says: as
text, as a picture in a notebook, and as data frames. `steptime.bench(…)` times callables that are at hand.

One law: a notebook's output is on other people's page. There is no script in it, no style sheet and no request, its
colours suit light and dark, and what strangers wrote is escaped.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from steptime.advice.rule import Finding, Weight
from steptime.callables.bench import Bench, BenchOptions, bench_here
from steptime.callables.sheet import as_text
from steptime.callables.text import badge, headline, sheet_of, tables as bench_tables
from steptime.compare.compare import compare
from steptime.compare.comparison import Comparison, is_comparison, read_file as read_comparison
from steptime.compare.gate import labels_of
from steptime.compare.tables import difference_tables, runs_table, settings_table
from steptime.compare.text import render_text
from steptime.diagnosis import diagnose_anywhere, diagnose_paths
from steptime.errors import UsageError
from steptime.memory.page import memory_tables
from steptime.memory.report import triage_path
from steptime.memory.snapshot import is_snapshot
from steptime.memory.text import MemoryReport, text as memory_text
from steptime.quantities import format_duration, format_share
from steptime.report import text
from steptime.report.page.frame import escaping
from steptime.report.page.pictures import GREY, TONES
from steptime.report.page.waterfall import waterfall
from steptime.report.printable import one_line
from steptime.report.report import Report
from steptime.report.sentences import place_text
from steptime.report.tables import (
    Table,
    case_tables,
    category_tables,
    findings_table,
    process_table,
    rank_tables,
    replay_tables,
    steps_table,
    trial_table,
    values_of,
)
from steptime.report.trial_text import render_trial
from steptime.report.trials import trial_report
from steptime.trials.results import Results, is_trial, read_results

__all__ = ["Benched", "Loaded", "LoadedComparison", "LoadedMemory", "LoadedReport", "LoadedTrial", "bench", "load"]

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


_TABLES = """
<div style="max-width:70em;font-family:system-ui,sans-serif;line-height:1.4;font-variant-numeric:tabular-nums">
<div style="opacity:.7;font-size:.85em">{{ title }}</div>
<div style="font-size:1.25em;font-weight:600;margin:.3em 0 .2em">{{ sentence }}</div>
{% for title, titles, rows, more in tables %}
<div style="margin:.8em 0 .2em;font-weight:600">{{ title }}</div>
<table style="border-collapse:collapse;font-size:.9em">
<tr>{% for name, number in titles %}<th style="text-align:{{ "right" if number else "left" }};padding:.1em .8em .1em 0;opacity:.7">{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}
<tr>{% for words, number in row %}<td style="text-align:{{ "right" if number else "left" }};padding:.1em .8em .1em 0;vertical-align:top">{{ words }}</td>{% endfor %}</tr>
{% endfor %}
</table>
{% if more %}<div style="opacity:.7">and {{ more }} more</div>{% endif %}
{% endfor %}
{% if next %}<div style="border-top:1px solid rgba(128,128,128,.35);margin-top:.6em;padding-top:.4em">Next: <code>{{ next }}</code></div>{% endif %}
</div>
"""  # noqa: E501 - white space between these elements would show
ROWS = 12
"""Of a table in a notebook."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded. `str()`: its text; last in a notebook's cell: its picture. `tables`: names for `to_dict`,
    `to_pandas` and `to_polars`, which give columns or a data frame. Times are ns, sizes bytes."""

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that have rows."""
        return tuple(table.identity for table in self._tables() if table.rows)

    def to_dict(self, table: str) -> dict[str, list[float | str | None]]:
        """A table's columns by name; None where a number is not known. Raises UsageError (no-such-table)."""
        for each in self._tables():
            if each.identity == table:
                return values_of(each)
        known = ", ".join(self.tables)
        raise UsageError("no-such-table", f"There is no table {table!r} here: name one of {known}.")

    def to_pandas(self, table: str) -> Any:
        """A table as a pandas.DataFrame. Raises UsageError."""
        return self._frame("pandas", table)

    def to_polars(self, table: str) -> Any:
        """A table as a polars.DataFrame. Raises UsageError."""
        return self._frame("polars", table)

    def _frame(self, library: str, table: str) -> Any:
        values = self.to_dict(table)
        try:
            return importlib.import_module(library).DataFrame(values)
        except ImportError:
            raise UsageError(
                "no-data-frames",
                f"{library} is not installed here: pip install {library}, or take .to_dict({table!r}), which needs "
                "nothing.",
            ) from None


@dataclass(frozen=True, slots=True)
class LoadedReport(Loaded):
    """What a recording, traces or a saved report say. `report`: all of it, as data."""

    report: Report

    def _tables(self) -> Iterable[Table]:
        process = self.report.processes[0]
        case = process.case
        yield from (findings_table(process), steps_table(process), *category_tables(case), *case_tables(case))
        yield from (*replay_tables(case), process_table(self.report))
        yield from rank_tables(self.report.ranks, len(self.report.processes))

    def of_rank(self, rank: int) -> LoadedReport:
        """The same report with another rank in front. Raises UsageError (no-such-rank)."""
        ordered = sorted(self.report.processes, key=lambda process: process.rank != rank)
        if ordered[0].rank != rank:
            known = ", ".join(str(each.rank) for each in ordered if each.rank is not None) or "none, it is one process"
            raise UsageError("no-such-rank", f"There is no rank {rank} in this report: it tells of {known}.")
        return LoadedReport(replace(self.report, processes=tuple(ordered)))

    def compare(self, *others: LoadedReport) -> LoadedComparison:
        """This run against later ones, as `steptime compare` does."""
        reports = [self.report, *(each.report for each in others)]
        if len(reports) < 2:
            raise UsageError("compare-two", "A comparison needs another report: before.compare(after)")
        return LoadedComparison(compare(reports, labels_of([report.source for report in reports])))

    def __str__(self) -> str:
        return text.render(self.report)

    def __repr__(self) -> str:
        return (
            f"<steptime.load({one_line(self.report.source)!r}): {one_line(self.report.processes[0].verdict.sentence)}>"
        )

    def _repr_html_(self) -> str:
        """For Jupyter and its like."""
        return first_screen(self.report)


@dataclass(frozen=True, slots=True)
class LoadedTrial(Loaded):
    """What a trial or a lab proved. `results`: all that was kept of it; `report`: of the recording that it is of."""

    folder: str
    results: Results

    @property
    def report(self) -> LoadedReport:
        """The recording's, with the trial in it. Raises SteptimeError where the recording is gone."""
        return LoadedReport(diagnose_paths([self.folder]))

    def _tables(self) -> Iterable[Table]:
        yield trial_table(trial_report(self.results, self.folder))

    def __str__(self) -> str:
        return render_trial(self.results)

    def __repr__(self) -> str:
        return f"<steptime.load({one_line(self.folder)!r}): trial of {len(self.results.plan.variants)} changes>"

    def _repr_html_(self) -> str:
        """For Jupyter and its like."""
        head, base, *_ = str(self).splitlines()
        return _in_tables(head, base, self._tables(), "", ("variant", "verdict", "speed", "speed_low", "speed_high",
                          "step_ns", "peak_bytes", "sentence"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadedComparison(Loaded):
    """What differs between runs. `comparison`: all of it, as data."""

    comparison: Comparison

    def _tables(self) -> Iterable[Table]:
        comparison = self.comparison
        yield from (settings_table(comparison), runs_table(comparison), *difference_tables(comparison))

    def __str__(self) -> str:
        return render_text(self.comparison)

    def __repr__(self) -> str:
        return f"<steptime comparison: {one_line(self.comparison.sentence)}>"

    def _repr_html_(self) -> str:
        """For Jupyter and its like."""
        runs = self.comparison.runs
        title = f"{runs[0].label} against {runs[-1].label}"
        return _in_tables(title, self.comparison.sentence, self._tables(), self.comparison.next_command)


@dataclass(frozen=True, slots=True)
class LoadedMemory(Loaded):
    """Who owns the memory in a snapshot of the allocator. `report`: all of it, as data."""

    report: MemoryReport

    def _tables(self) -> Iterable[Table]:
        return memory_tables(self.report)

    def __str__(self) -> str:
        return memory_text(self.report)

    def __repr__(self) -> str:
        return f"<steptime.load({one_line(self.report.source)!r}): {one_line(str(self).splitlines()[1])}>"

    def _repr_html_(self) -> str:
        """For Jupyter and its like."""
        title, headline, *_ = str(self).splitlines()
        return _in_tables(title, headline, self._tables(), self.report.next_command)


@dataclass(frozen=True, slots=True)
class Benched(Loaded):
    """Callables beside each other. `result`: all of it, as data."""

    result: Bench

    def _tables(self) -> Iterable[Table]:
        return bench_tables(self.result)

    def __str__(self) -> str:
        return as_text(sheet_of(self.result))

    def __repr__(self) -> str:
        return f"<steptime.bench: {one_line(headline(self.result))}>"

    def _repr_html_(self) -> str:
        """For Jupyter and its like."""
        return _in_tables(headline(self.result), badge(self.result), self._tables(), "")


def bench(
    *callables: Callable[..., object],
    inputs: object = (),
    shapes: Sequence[Sequence[int]] = (),
    dtypes: Sequence[str] = (),
    modes: Sequence[str] = (),
    device: str = "",
    backward: bool = False,
    cold: bool = False,
    seconds: float = 1.0,
) -> Benched:
    """Times callables on the same inputs in turns, in this process, with torch, as `steptime bench` does in fresh ones.

    inputs: their arguments, as a tuple, or a function that makes them; `shapes` and `dtypes` go to the function, or
    make random tensors where there are no inputs. modes: "eager", "compile", … backward: both passes. cold: out of the
    caches before each call. seconds: for each callable on each input. Raises UsageError without a callable.
    """
    if not callables:
        raise UsageError("usage", "Nothing to time: steptime.bench(slow, fast, inputs=(x, y)).")
    named: dict[str, object] = {}
    for each in callables:
        name = getattr(each, "__qualname__", type(each).__name__)
        named[name if name not in named else f"{name} #{len(named) + 1}"] = each
    given = inputs if callable(inputs) or not inputs else (lambda: inputs)
    settings = tuple((tuple(shape),) for shape in shapes)
    options = BenchOptions(
        tuple(named), "", settings, tuple(dtypes), tuple(modes), device, backward, cold, seconds, processes=1
    )
    return Benched(bench_here(named, given or None, options))


def load(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Any:
    """What `path` holds, a `Loaded`: of a recording, a trace or a report that was saved with --full, of a trial's
    folder, a comparison as JSON, or a snapshot of PyTorch's allocator. Several paths are traces of one job's ranks.
    Raises SteptimeError, in one sentence, where it cannot be read."""
    name = os.fspath(path)
    if not more and is_trial(Path(name)):
        return LoadedTrial(name, read_results(Path(name)))
    if not more and is_comparison(Path(name)):
        return LoadedComparison(read_comparison(Path(name), name))
    if not more and is_snapshot(Path(name)):
        return LoadedMemory(triage_path(Path(name)))
    return LoadedReport(diagnose_anywhere((name, *(os.fspath(each) for each in more))))


def _in_tables(title: str, sentence: str, tables: Iterable[Table], next_: str, only: Sequence[str] = ()) -> str:
    """The first rows of each table as HTML with nothing but inline style. only: columns by name, () for all."""
    displayed = []
    for table in tables:
        kept = [place for place, column in enumerate(table.columns) if not only or column.raw in only]
        rows = [[(row[place].short or row[place].text, table.columns[place].number) for place in kept]
                for row in table.rows[:ROWS]]  # fmt: skip
        if rows:
            titles = [(table.columns[place].title, table.columns[place].number) for place in kept]
            displayed.append((table.title, titles, rows, len(table.rows) + table.hidden - len(rows)))
    return _html("tables", title=one_line(title), sentence=sentence, tables=displayed, next=next_)


def first_screen(report: Report) -> str:
    """Verdict, categories, findings and the next command as HTML with nothing but inline style."""
    process = report.processes[0]
    environment, step = report.environment, process.case.step
    fall = waterfall(process.case)
    facts = (f"torch {environment.torch}" if environment.torch else "", environment.device, environment.host)
    return _html(
        "report",
        job=one_line(environment.command or report.source),
        facts=" · ".join(filter(None, facts)),
        sentence=process.verdict.sentence,
        badge=process.verdict.badge,
        step=format_duration(step.duration.value),
        interval=_interval(report),
        falls=fall.falls if fall is not None else (),
        findings=[_reported(each, step.duration.value) for each in process.findings[:FIRST]],
        next=report.next_command,
        tones=TONES,
        grey=GREY,
    )


def _interval(report: Report) -> str:
    step = report.processes[0].case.step
    if step.duration.samples < 2:
        return "one step: its spread is not known"
    low, high = format_duration(step.duration.low), format_duration(step.duration.high)
    return f"95 % interval {low} to {high}, {step.steady} steady steps"


def _reported(finding: Finding, step: float) -> dict[str, str]:
    saving = finding.savings
    share = f" ({format_share(saving.value / step)})" if saving is not None and step else ""
    place = ""
    if finding.source is not None:
        place = f"{place_text(finding.source)}{f': {finding.source.text}' if finding.source.text else ''}"
    return {
        "code": finding.code,
        "name": f"{finding.name}{'' if finding.weight is Weight.FINDING else f' ({finding.weight.value})'}",
        "saving": f"{format_duration(saving.value)}{share}" if saving is not None else "",
        "summary": finding.summary,
        "place": place,
        "advice": finding.advice,
    }


def _html(template: str, **names: object) -> str:
    return _templates().get_template(template).render(**names).encode("utf-8", "backslashreplace").decode()


@cache
def _templates() -> jinja2.Environment:
    return escaping({"report": _TEMPLATE.strip(), "tables": _TABLES.strip()}.get)
