"""Public reports, re-enacted: does steptime find what their owners found?

    python -m benchmarks.reports [--batch own] [CASE…]      # runs cases, and twins of those whose cause was named
    python -m benchmarks.reports --new                      # cases without an answer only: their first sight
    python -m benchmarks.reports --table                    # writes results/reports.md from the answers
    python -m benchmarks.reports --show [CASE…]             # prints the newest answers

The first answer to a case is kept for ever (results/reports.jsonl). A case whose answer was looked at is not fresh.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.kept import machine
from benchmarks.reports import tables
from benchmarks.reports.answered import Answered, answered, kept
from benchmarks.reports.score import score
from benchmarks.reports.truth import JOB, TWIN, Truth, cases
from benchmarks.started import JobFailed


def main() -> None:
    options = arguments()
    if options.table:
        print(f"wrote {tables.written()}")
        return
    asked = cases(options.case, options.batch)
    if options.show:
        _show(asked)
        return
    done = {row["case"] for row in tables.rows()} if options.new else set()
    for truth in asked:
        if truth.name not in done:
            row = examined(truth, every_twin=options.every_twin)
            tables.keep(row)
            print(summary(truth, row), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", nargs="*", help="names of cases; all without")
    parser.add_argument("--batch", default="", help="blind, own or seen")
    parser.add_argument("--new", action="store_true", help="only cases that have no answer yet")
    parser.add_argument("--every-twin", action="store_true", help="run twins of jobs whose cause was not named, too")
    parser.add_argument("--table", action="store_true", help="write results/reports.md")
    parser.add_argument("--show", action="store_true", help="print the newest answers")
    return parser.parse_args()


def examined(truth: Truth, *, every_twin: bool) -> dict[str, Any]:
    """A row of the results: the answers about a case and its twin. Of a cause that was not named in the job, nothing
    false is expected about the twin."""
    row: dict[str, Any] = {"case": truth.name, "about": machine(), "twin": None}
    try:
        job = answered(truth, JOB)
        row["job"] = kept(job)
        if every_twin or score(truth, job, None).place >= 0:
            row["twin"] = kept(answered(truth, TWIN))
    except JobFailed as error:
        row["failed"] = str(error)
    return row


def summary(truth: Truth, row: dict[str, Any]) -> str:
    """One line about an answer."""
    if "failed" in row:
        return f"{truth.name}: failed: {row['failed']}"
    job = Answered.of(row["job"])
    found = score(truth, job, Answered.of(row["twin"]) if row["twin"] else None)
    told = job.findings[0] if job.findings else None
    said = f"{told.code} line {told.line}, {told.share:.0%}" if told else "nothing"
    marks = f"place {found.place}, line {found.line}, advice {found.advice}, false {found.false}"
    return f"{truth.name} ({truth.kind}, {truth.share:.0%}): {marks}; said {said}"


def _show(asked: list[Truth]) -> None:
    newest = {row["case"]: row for row in tables.rows()}
    for truth in asked:
        row = newest.get(truth.name)
        if row is None or "failed" in row:
            continue
        print(f"\n=== {summary(truth, row)}\n{truth.cause}; lines {sorted(truth.lines)}")
        for which in ("job", "twin"):
            for each in Answered.of(row[which]).findings if row[which] else ():
                print(f"  {which}: {each.code} {each.share:.0%} line {each.line}: {each.text}")


if __name__ == "__main__":
    main()
