"""The clinic's tables, in Markdown. Pure functions of rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.clinic.rivals import RIVALS
from benchmarks.clinic.rows import rows_of
from benchmarks.clinic.score import SEVERE, Count, Row, Scores, bottlenecks, precision_and_recall, score
from steptime.quantities import BETWEEN_RUNS

SECTION = "clinic"
COMMAND = "python -m benchmarks.clinic.run"


def clinic(section: Mapping[str, Any], name: str) -> list[str]:
    """Everything about steptime on the planted faults."""
    rows = rows_of(section)
    heard = [row for row in rows if row.message is not None]
    scores = score(rows)
    errors = [abs(error) for error in scores.errors]
    again = f"{COMMAND} --name {name}"
    return [
        f"{len({row.case.job for row in heard})} jobs, {len(heard)} diagnoses. A fault of at least {SEVERE:.0%} of a "
        f"step must be found. All: `{again}`; one case: `{again} --cases heavy_decode`.",
        "",
        "| | right | of | share | 95 % interval | target |",
        "|---|---|---|---|---|---|",
        *_scored(scores),
        "",
        "Share said against share planted, where the right cause was first: median error "
        f"{statistics.median(errors) if errors else math.nan:.1%} of a step. The planted share is measured by the "
        "job's own stopwatch in bare runs with and without the fault, and has an interval of its own.",
        "",
        "### By cause",
        "",
        "Precision: of the times that a cause was named first, how often it was right. Recall: of the times that it "
        "was there, how often it was named first.",
        "",
        "| cause | precision | recall |",
        "|---|---|---|",
        *(f"| {cause} | {_of(precision)} | {_of(recall)} |" for cause, (precision, recall) in
          precision_and_recall(rows).items()),
        "",
        "### What a step was said to be bound by",
        "",
        *_confusion(rows),
        "",
        "### Every diagnosis",
        "",
        f"One row: `{COMMAND} --cases JOB`.",
        "",
        "| job | style | planted (measured) | healthy step | said first | share said | line |",
        "|---|---|---|---|---|---|---|",
        *(_diagnosis(row) for row in rows),
    ]  # fmt: skip


def rivals(section: Mapping[str, Any], name: str) -> list[str]:
    """steptime and others on the same cases at the same amounts."""
    present = [tool for tool in RIVALS if rows_of(section, tool)]
    lines = [
        "Each tool on the same jobs at the same amounts. Its own words are mapped to causes by the "
        "second table; where that is unclear, the rival gets the benefit: a word stands for every cause that it could "
        "mean. steptime is scored on the same cases, by one name for one cause. One tool: "
        f"`{COMMAND} --continue --name {name} --rival {present[0] if present else 'profiler'}=PYTHON`.",
        "",
        "| tool | ran | right cause first | among the first three | false alarms | abstained |",
        "|---|---|---|---|---|---|",
    ]
    for tool in present:
        theirs = rows_of(section, tool)
        keys = {(row.case.job, row.dose.amount) for row in theirs if row.message is not None}
        jobs = {row.case.job for row in theirs}
        if keys:
            ours = [row for row in rows_of(section) if (row.case.job, row.dose.amount) in keys]
            lines += [_compared(tool, theirs), _compared("steptime, same cases", ours)]
        else:
            why = next(row.failed for row in theirs if row.failed)
            lines.append(f"| {tool} | 0 of {len(theirs)} in {len(jobs)} jobs: {why} | – | – | – | – |")
    lines += ["", "| tool, and how it is run | its word | may mean |", "|---|---|---|"]
    for tool in present:
        rival = RIVALS[tool]
        heads = (f"{tool}: {rival.how}", *("" for _ in rival.meanings))
        lines += [
            f"| {head} | {word} | {', '.join(causes) or 'none of ours'} |"
            for head, (word, causes) in zip(heads, rival.meanings.items(), strict=False)
        ]
    return lines


def _compared(tool: str, rows: Sequence[Row]) -> str:
    scores, ran = score(rows), sum(row.message is not None for row in rows)
    figures = (scores.found_first, scores.found_among_three, scores.false_alarms, scores.abstained)
    return f"| {tool} | {ran} of {len(rows)} | " + " | ".join(_of(figure) for figure in figures) + " |"


def _scored(scores: Scores) -> list[str]:
    named = (
        ("right cause first, of what was decided", scores.first, "≥ 90 %"),
        ("right cause among the first three", scores.among_three, "≥ 97 %"),
        ("line right, where the cause was first", scores.line, "≥ 90 %"),
        ("false alarms on healthy jobs", scores.false_alarms, "≤ 5 %"),
        ("planted share in the interval", scores.covered, "90 to 99 %"),
        (f"the same, with {BETWEEN_RUNS:.0%} of a step between runs", scores.covered_by_another_run, ""),
        ("verdict withheld, though a fault was there", scores.abstained, ""),
        ("right cause first, withheld verdicts among them", scores.found_first, ""),
    )
    return [_score(name, counted, target) for name, counted, target in named]


def _score(name: str, counted: Count, target: str) -> str:
    low, high = counted.interval()
    return f"| {name} | {counted.good} | {counted.all} | {counted.share:.0%} | {low:.0%} to {high:.0%} | {target} |"


def _of(counted: Count) -> str:
    return f"{counted.good} of {counted.all}"


def _confusion(rows: Sequence[Row]) -> list[str]:
    counted = bottlenecks(rows)
    message = sorted({message for _, message in counted})
    lines = ["| planted | " + " | ".join(message) + " |", "|---" * (len(message) + 1) + "|"]
    for planted in sorted({planted for planted, _ in counted}):
        cells = [str(counted[planted, each] or "") for each in message]
        lines.append(f"| {planted} | " + " | ".join(cells) + " |")
    return lines


def _diagnosis(row: Row) -> str:
    planted = f"{row.case.cause}, {_range(row.dose.share, row.dose.low, row.dose.high)}"
    planted = planted if row.dose.amount and row.case.cause else "nothing"
    head = f"| {row.case.job} | {row.case.style} | {planted}"
    if row.message is None:
        return f"{head} | – | {row.failed} | | |"
    name, share, line = "nothing", "", ""
    if row.message.causes:
        name, share = row.message.causes[0], _range(*row.message.shares[0])
        line = ":".join(map(str, row.message.lines[0])) if row.message.lines[0] else ""
    mark = "" if not row.is_faulty else " ✓" if row.place == 0 else f" (right: {_place(row)})"
    withheld = ", verdict withheld" if row.is_abstention else ""
    return f"{head} | {row.dose.healthy_ns / 1e6:.2f} ms | {name}{mark}{withheld} | {share} | {line} |"


def _place(row: Row) -> str:
    return "not named" if row.place < 0 else f"{row.place + 1}."


def _range(value: float, low: float, high: float) -> str:
    return f"{value:.0%} ({low:.0%} to {high:.0%})"
