"""benchmarks/results/reports.md, from the answers in reports.jsonl."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kept import RESULTS
from benchmarks.reports.answered import Answered
from benchmarks.reports.score import Score, counts, score
from benchmarks.reports.truth import Truth, cases

ROWS, PAGE, READ = RESULTS / "reports.jsonl", RESULTS / "reports.md", RESULTS / "reports-read.csv"
BATCHES = {
    "blind": "by somebody who does not look at rules",
    "own": "by whoever mends rules, before looking at them",
    "seen": "known before their first score",
}
HEAD = """\
# Public reports, re-enacted

<!-- made by `python -m benchmarks.reports --table`; do not edit -->

Each case re-enacts in a page of code what somebody reported in public and found the cause of
([cases](../reports/cases/README.md), each with its source and the owners' fix). *First sight* is the first score that a
case ever had; *now* is the newest one. Right are a cause that the finding names, and a marked line. Advice counts where
the finding names the cause and its words, followed to the letter, are the owners' fix. *Claimed* is the saving that the
finding states, *measured* what the fix brought, both as shares of a step. A twin is the job with the fix: false words
are a finding at the old place that still names the cause; a twin was run where the cause was named.
"""

READING = """
Read by two who had seen neither rules nor scores, by meaning: *right* where the finding alone tells what is done,
where, and why it is needless or slow; *in part* where the place or the cost is right, but not the reason.
"""

Row = dict[str, Any]


def rows() -> list[Row]:
    """Everything that was answered, the oldest first."""
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def keep(row: Row) -> None:
    with ROWS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def scored(found: Sequence[Row], *, first: bool) -> list[tuple[Truth, Score, Row]]:
    """Each case with its first or its newest answer."""
    chosen: dict[str, Row] = {}
    for row in found:
        if not first or row["case"] not in chosen:
            chosen[row["case"]] = row
    return [(each, _score(each, chosen[each.name]), chosen[each.name]) for each in cases() if each.name in chosen]


def _score(truth: Truth, row: Row) -> Score:
    if "failed" in row:
        return Score(-1, False, False, 0.0, ())
    twin = Answered.of(row["twin"]) if row.get("twin") else None
    return score(truth, Answered.of(row["job"]), twin)


def page(found: Sequence[Row]) -> str:
    """The results in Markdown."""
    return "\n".join([HEAD, *_sums(found), *_readings(), *_table(found), ""])


def proof_rows(found: Sequence[Row]) -> Iterator[tuple[str, Any, str]]:
    """What was counted at first sight, its count, and when: for the page of proof."""
    first = scored(found, first=True)
    for batch in ("blind", "own"):
        own = [each for each in first if each[0].batch == batch]
        if own:
            when = max(row["about"]["date"] for _, _, row in own)
            for what, count in counts([(truth, each) for truth, each, _ in own]).items():
                yield f"Public reports, {batch}: {what}", count, when


def _sums(found: Sequence[Row]) -> Iterator[str]:
    what = ("cause, first finding", "cause, first three", "line", "advice removes the cost", "twins with false words")
    yield _line("batch", "when", "cases", *what)
    yield "|---" * 8 + "|"
    for when in ("first sight", "now"):
        every = scored(found, first=when == "first sight")
        for batch, by in BATCHES.items():
            own = [(truth, each) for truth, each, _ in every if truth.batch == batch]
            if own:
                cells = (f"{each.good} ({each.share:.0%})" for each in counts(own).values())
                yield _line(f"{batch}: {by}", when, str(len(own)), *cells)


def _readings() -> Iterator[str]:
    """What readers made of the answers to blind cases, by their meaning and not by words."""
    with READ.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    yield READING
    yield _line("when", "reader", "cases", "first finding: right, in part, wrong", "best of three", "advice solves")
    yield "|---" * 6 + "|"
    for when, reader in sorted({(row["when"], row["reader"]) for row in rows}):
        own = [row for row in rows if (row["when"], row["reader"]) == (when, reader)]
        cells = [_grades(Counter(row[column] for row in own)) for column in ("first", "three")]
        solved = sum(row["advice"] == "yes" for row in own)
        yield _line(when, reader, str(len(own)), *cells, f"{solved} ({solved / len(own):.0%})")


def _grades(counted: Counter[str]) -> str:
    return ", ".join(
        f"{counted[grade]} ({counted[grade] / counted.total():.0%})" for grade in ("right", "partly", "wrong")
    )


def _table(found: Sequence[Row]) -> Iterator[str]:
    first = {truth.name: each for truth, each, _ in scored(found, first=True)}
    marks = ("first sight: cause, line, advice", "now: cause, line, advice")
    yield "\n" + _line("case", "kind", *marks, "claimed", "measured", "first finding now", "scored at")
    yield "|---" * 8 + "|"
    for truth, each, row in scored(found, first=False):
        about = row["about"]
        yield _line(
            f"{truth.batch}: [{truth.name}]({truth.source[0].split()[0]})",
            truth.kind,
            _marks(first[truth.name]),
            _marks(each),
            f"{each.claimed:.0%}",
            f"{truth.share:.0%}",
            _first_words(row),
            f"{about['date']}, {about['commit']}",
        )


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _marks(each: Score) -> str:
    cause = "first" if each.place == 0 else f"{each.place + 1}." if each.place > 0 else "no"
    false = f", twin: {', '.join(each.false)}" if each.false else ""
    return f"{cause}, {'yes' if each.line else 'no'}, {'yes' if each.advice else 'no'}{false}"


def _first_words(row: Row) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    told = Answered.of(row["job"]).findings
    if not told:
        return "none"
    name, summary, *_ = told[0].text.split("\n")
    return f"{told[0].code} {name}: {summary}".replace("|", "\\|")


def written() -> Path:
    """Writes the page."""
    PAGE.write_text(page(rows()), encoding="utf-8")
    return PAGE


__all__ = ["PAGE", "ROWS", "keep", "page", "proof_rows", "rows", "scored", "written"]
