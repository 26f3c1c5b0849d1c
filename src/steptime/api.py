"""Notebook and script interface: `steptime.load(path)` returns a recording, a trial, a comparison or a snapshot as
text, as a picture in a notebook, and as data frames. `steptime.bench(…)` times callables.

One law: a notebook's output is embedded in other people's pages. It has no script, no style sheet and no request, its
colours suit light and dark, and strangers' strings are escaped."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from steptime.answer.answer import Answer
from steptime.answer.page.frame import as_piece
from steptime.answer.printable import one_line
from steptime.answer.tables import Table, values_of
from steptime.answer.text import as_text
from steptime.callables.bench import Bench, BenchOptions, bench_here
from steptime.callables.bench_answer import answer_of as answer_of_bench
from steptime.compare.answer import answer_of as answer_of_comparison
from steptime.compare.compare import compare
from steptime.compare.comparison import Comparison, is_comparison, read_file as read_comparison
from steptime.compare.gate import labels_of
from steptime.diagnosis import diagnose_anywhere, diagnose_paths
from steptime.errors import UsageError
from steptime.memory.answer import answer_of as answer_of_memory, memory_tables
from steptime.memory.report import MemoryReport, triage_path
from steptime.memory.snapshot import is_snapshot
from steptime.report.answer import answer_of as answer_of_report
from steptime.report.json import read, render
from steptime.report.report import Report
from steptime.report.tables import (
    case_tables,
    category_tables,
    findings_table,
    process_table,
    rank_tables,
    replay_tables,
    steps_table,
    trial_table,
)
from steptime.report.trial_answer import answer_of as answer_of_trial
from steptime.report.trials import trial_report
from steptime.trials.results import Results, is_trial, read_results

__all__ = ["Benched", "Loaded", "LoadedComparison", "LoadedMemory", "LoadedReport", "LoadedTrial", "bench", "load"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Object that `steptime.load` returns. `str()` is its text, its value at the end of a cell its picture. `tables`:
    names for `to_dict`, `to_pandas` and `to_polars`, which return columns or a frame. Times are ns, sizes bytes."""

    def _answer(self) -> Answer:
        raise NotImplementedError

    def _tables(self) -> Iterable[Table]:
        return self._answer().tables

    def __str__(self) -> str:
        return as_text(self._answer())

    def _repr_html_(self) -> str:
        """HTML for Jupyter and similar tools."""
        return as_piece(self._answer())

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the non-empty tables."""
        return tuple(table.identity for table in self._tables() if table.rows)

    def to_dict(self, table: str) -> dict[str, list[float | str | None]]:
        """Columns of a table by name, with None for an unknown number. Raises UsageError (no-such-table)."""
        for each in self._tables():
            if each.identity == table:
                return values_of(each)
        known = ", ".join(self.tables)
        raise UsageError("no-such-table", f"There is no table {table!r}. Tables: {known}.")

    def to_pandas(self, table: str) -> Any:
        """Table as a pandas.DataFrame. Raises UsageError."""
        return self._frame("pandas", table)

    def to_polars(self, table: str) -> Any:
        """Table as a polars.DataFrame. Raises UsageError."""
        return self._frame("polars", table)

    def _frame(self, library: str, table: str) -> Any:
        values = self.to_dict(table)
        try:
            return importlib.import_module(library).DataFrame(values)
        except ImportError:
            raise UsageError(
                "no-data-frames",
                f"{library} is not installed: pip install {library}, or use .to_dict({table!r}), which needs "
                "no library.",
            ) from None


@dataclass(frozen=True, slots=True)
class LoadedReport(Loaded):
    """Report of a recording, of traces, or one that was saved. `report`: the complete data."""

    report: Report

    def _tables(self) -> Iterable[Table]:
        process = self.report.processes[0]
        case = process.case
        yield from (findings_table(process), steps_table(process), *category_tables(case), *case_tables(case))
        yield from (*replay_tables(case), process_table(self.report))
        yield from rank_tables(self.report.ranks, len(self.report.processes))

    def of_rank(self, rank: int) -> LoadedReport:
        """This report with another rank first. Raises UsageError (no-such-rank)."""
        ordered = sorted(self.report.processes, key=lambda process: process.rank != rank)
        if ordered[0].rank != rank:
            known = ", ".join(str(each.rank) for each in ordered if each.rank is not None) or "none, it is one process"
            raise UsageError("no-such-rank", f"This report has no rank {rank}. Ranks: {known}.")
        return LoadedReport(replace(self.report, processes=tuple(ordered)))

    def compare(self, *others: LoadedReport) -> LoadedComparison:
        """Comparison of this run with later ones, as by `steptime compare`. Raises UsageError without others."""
        reports = [self.report, *(each.report for each in others)]
        if len(reports) < 2:
            raise UsageError("compare-two", "compare() needs a second report: before.compare(after)")
        return LoadedComparison(compare(reports, labels_of([report.source for report in reports])))

    def _answer(self) -> Answer:
        return answer_of_report(self.report)

    def __repr__(self) -> str:
        return (
            f"<steptime.load({one_line(self.report.source)!r}): {one_line(self.report.processes[0].verdict.sentence)}>"
        )


@dataclass(frozen=True, slots=True)
class LoadedTrial(Loaded):
    """Result of a trial or a lab. `results`: the complete data; `report`: report of the trial's recording."""

    folder: str
    results: Results

    @property
    def report(self) -> LoadedReport:
        """Report of the trial's recording, with the trial in it. Raises SteptimeError if the recording is gone."""
        return LoadedReport(diagnose_paths([self.folder]))

    def _answer(self) -> Answer:
        return answer_of_trial(self.results, self.folder)

    def _tables(self) -> Iterable[Table]:
        yield trial_table(trial_report(self.results, self.folder))

    def __repr__(self) -> str:
        return f"<steptime.load({one_line(self.folder)!r}): trial of {len(self.results.plan.variants)} changes>"


@dataclass(frozen=True, slots=True)
class LoadedComparison(Loaded):
    """Differences between runs. `comparison`: the complete data."""

    comparison: Comparison

    def _answer(self) -> Answer:
        return answer_of_comparison(self.comparison)

    def __repr__(self) -> str:
        return f"<steptime comparison: {one_line(self.comparison.sentence)}>"


@dataclass(frozen=True, slots=True)
class LoadedMemory(Loaded):
    """Owners of the memory in a snapshot of the allocator. `report`: the complete data."""

    report: MemoryReport

    def _answer(self) -> Answer:
        return answer_of_memory(self.report)

    def _tables(self) -> Iterable[Table]:
        return memory_tables(self.report)

    def __repr__(self) -> str:
        return f"<steptime.load({one_line(self.report.source)!r}): {one_line(self._answer().headline)}>"


@dataclass(frozen=True, slots=True)
class Benched(Loaded):
    """Result of timing callables. `result`: the complete data."""

    result: Bench

    def _answer(self) -> Answer:
        return answer_of_bench(self.result)

    def __repr__(self) -> str:
        return f"<steptime.bench: {one_line(self._answer().headline)}>"


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
    """Times callables on the same inputs in turns, in this process, with torch; `steptime bench` does so in fresh
    processes.

    inputs: their arguments, as a tuple, or a function that makes them; `shapes` and `dtypes` go to that function, or
    make random tensors if there are no inputs. modes: "eager", "compile", … backward: time both passes. cold: empty the
    caches before each call. seconds: time for each callable on each input. Raises UsageError without a callable."""
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
    """Loads a recording, a trace or a report that was saved with --full, the folder of a trial, a comparison as JSON,
    or a snapshot of PyTorch's allocator; returns a `Loaded`. Several paths are traces of one job's ranks. Raises
    SteptimeError, with one sentence, if they cannot be read."""
    name = os.fspath(path)
    if not more and is_trial(Path(name)):
        return LoadedTrial(name, read_results(Path(name)))
    if not more and is_comparison(Path(name)):
        return LoadedComparison(read_comparison(Path(name), name))
    if not more and is_snapshot(Path(name)):
        return LoadedMemory(triage_path(Path(name)))
    return LoadedReport(_with_cells(diagnose_anywhere((name, *(os.fspath(each) for each in more)))))


def _with_cells(report: Report) -> Report:
    """The report with the cells of this notebook by their numbers ("In [5], line 3", not the file of the kernel's)."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    names: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    text = whole = render(report)
    for file, number in names.items():
        cell, short = f"In [{number}]", json.dumps(PurePosixPath(file).name)[1:-1]
        text = re.sub(rf'"[^"]*{re.escape(json.dumps(file)[1:-1])}"', f'"{cell}"', text)
        text = re.sub(rf"(?<![\w./\\-]){re.escape(short)}:(\d+)", rf"{cell}, line \1", text)
    return report if text == whole else read(text.encode(), report.source)
