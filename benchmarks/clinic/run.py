"""The clinic: jobs with one planted fault each, in several doses, and how often the diagnosis is right.

    python -m benchmarks.clinic.run [--quick] [--cases heavy_decode,casts] [--shares 5,15,40,80] [--name MACHINE]

Every job runs bare first: its own stopwatch gives the healthy step, and which amount of the fault takes which share of
a step. Then it runs under `steptime run`, unmodified. Writes benchmarks/results/clinic-<name>.json after every case
and, at the end, clinic-<name>.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.clinic.cases import CASES, Case
from benchmarks.clinic.diagnosed import steptime_says
from benchmarks.clinic.score import Count, Row, precision_and_recall, regimes, score
from benchmarks.clinic.truth import Dose, JobFailed, doses

RESULTS = Path(__file__).parent.parent / "results"
QUICK = (
    "per_sample_fetch", "heavy_decode", "slow_collate", "too_many_workers", "own_batches", "logging_each_step",
    "loop_loss", "checkpoint_each_step", "anomaly_detection", "casts", "gan_slow_items", "slow_validation",
)  # fmt: skip


def main() -> None:
    options = arguments()
    chosen = [case for case in CASES if case.job in options.cases]
    shares = [float(share) / 100 for share in options.shares.split(",")]
    target = RESULTS / f"clinic-{options.name}"
    rows: list[Row] = []
    for case in chosen:
        rows += examined(case, shares)
        target.with_suffix(".json").write_text(json.dumps(machine() | {"rows": [plain(row) for row in rows]}, indent=1))
    target.with_suffix(".md").write_text(page(rows))
    print(f"Wrote {target}.md")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a dozen cases, healthy and at 40 %%")
    parser.add_argument("--cases", help="names of jobs, with commas between")
    parser.add_argument("--shares", help="of a step that the fault shall take, in percent")
    parser.add_argument("--name", default=platform.node(), help="of the machine, for the files of results")
    options = parser.parse_args()
    known = [case.job for case in CASES]
    options.cases = options.cases.split(",") if options.cases else list(QUICK) if options.quick else known
    options.shares = options.shares or ("40" if options.quick else "5,15,40,80")
    unknown = set(options.cases) - set(known)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def examined(case: Case, shares: list[float]) -> list[Row]:
    """The rows of one case; a case that cannot run here is one row that says why."""
    nothing = Dose(0, 0.0, 0.0, math.nan, math.nan)
    if case.missing:
        return [told(Row(case, nothing, None, f"needs {', '.join(case.missing)}"))]
    try:
        taken = doses(case, shares)
    except JobFailed as error:
        return [told(Row(case, nothing, None, str(error)))]
    return [told(heard(case, dose)) for dose in taken]


def heard(case: Case, dose: Dose) -> Row:
    try:
        return Row(case, dose, steptime_says(case, dose.amount))
    except (JobFailed, subprocess.TimeoutExpired) as error:
        return Row(case, dose, None, str(error))


def told(row: Row) -> Row:
    """One line on the screen."""
    words = row.failed or ", ".join(row.said.causes if row.said else ()) or "nothing"
    regime = row.said.regime if row.said else ""
    print(
        f"{row.case.job:30} {row.dose.share:6.1%} of {row.dose.step_ns / 1e6:8.2f} ms  {regime:10} {words}", flush=True
    )
    return row


def machine() -> dict[str, str]:
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    return {
        "cpus": str(len(os.sched_getaffinity(0))), "python": platform.python_version(), "torch": version("torch"),
        "date": date.today().isoformat(), "load": f"{os.getloadavg()[0]:.1f}", "commit": head.strip(),
    }  # fmt: skip


def plain(row: Row) -> dict[str, object]:
    said = asdict(row.said) if row.said is not None else None
    return {"job": row.case.job, "dose": asdict(row.dose), "said": said, "failed": row.failed}


def page(rows: list[Row]) -> str:
    """The tables, in Markdown."""
    scores, facts = score(rows), machine()
    errors = [abs(error) for error in scores.errors]
    ran = {row.case.job for row in rows if row.said is not None}
    lines = [
        "# The clinic", "",
        f"{len(ran)} jobs, {sum(row.said is not None for row in rows)} diagnoses; {facts['cpus']} CPUs, Python "
        f"{facts['python']}, torch {facts['torch']}, {facts['date']}, commit {facts['commit']}. Faults of at "
        "least 10 % of a step count; made by `python -m benchmarks.clinic.run`.", "",
        "| | right | of | share | 95 % interval | target |", "|---|---|---|---|---|---|",
        _row("right cause first", scores.first, "≥ 90 %"),
        _row("right cause among the first three", scores.among_three, "≥ 97 %"),
        _row("line right, where the cause was first", scores.line, "≥ 90 %"),
        _row("false alarms on healthy jobs", scores.false_alarms, "≤ 5 %"),
        _row("planted share in the interval", scores.covered, "90 to 99 %"),
        _row("abstentions", scores.abstained, ""), "",
        f"Share said against share planted, where the right cause was first: median error "
        f"{statistics.median(errors) if errors else math.nan:.1%} of a step.", "",
        "## By cause", "", "| cause | precision | recall |", "|---|---|---|",
    ]  # fmt: skip
    for cause, (precision, recall) in precision_and_recall(rows).items():
        lines.append(f"| {cause} | {precision.good} of {precision.all} | {recall.good} of {recall.all} |")
    lines += ["", "## What the step was said to be bound by", "", "| planted | said | times |", "|---|---|---|"]
    lines += [f"| {planted} | {said} | {times} |" for (planted, said), times in sorted(regimes(rows).items())]
    lines += [
        "",
        "## Every case",
        "",
        "| job | style | planted | healthy step | said first | share said |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_case_row(row) for row in rows]
    return "\n".join([*lines, ""])


def _row(name: str, counted: Count, target: str) -> str:
    low, high = counted.interval()
    return f"| {name} | {counted.good} | {counted.all} | {counted.share:.0%} | {low:.0%} to {high:.0%} | {target} |"


def _case_row(row: Row) -> str:
    planted = f"{row.case.cause}, {row.dose.share:.0%}" if row.dose.amount and row.case.cause else "nothing"
    said = row.failed or (row.said.causes[0] if row.said and row.said.causes else "nothing")
    share = (
        f"{row.said.shares[0][0]:.0%} ({row.said.shares[0][1]:.0%} to {row.said.shares[0][2]:.0%})"
        if row.said and row.said.shares
        else ""
    )
    return f"| {row.case.job} | {row.case.style} | {planted} | {row.dose.healthy_ns / 1e6:.2f} ms | {said} | {share} |"


if __name__ == "__main__":
    main()
