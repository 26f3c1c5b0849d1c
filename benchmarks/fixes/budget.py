"""What five minutes of `steptime try` reach of what an exhaustive search finds: every proposal, with time enough to
decide each.

    python -m benchmarks.fixes.budget FOLDER [--jobs SCRIPT,…] [--budget 5m] [--long 15m]
    python -m benchmarks.fixes.budget FOLDER --report benchmarks/results/budget-<machine>

Recordings and results go into FOLDER; what is in it already is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fixes.run import environment_of
from benchmarks.kept import ROOT, speed_of
from benchmarks.started import JobFailed, steptime
from steptime.trials.results import NAME, Results, read_results
from steptime.trials.trial import TrialVerdict

SCRIPTS = "tests/jobs/faults/scripts"
JOBS = ("examples/slow_input.py", f"{SCRIPTS}/pointwise_chain.py", f"{SCRIPTS}/slow_collate.py")
LINES = "budget.jsonl"
USUAL, ALL = 6, 50
"""Fixes that `steptime try` takes up unless told otherwise, and more than there are."""
PATCH = "patch"
"""The variant in which a patch runs by itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default=",".join(JOBS), help="scripts, with commas between")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--long", default="15m", help="of the exhaustive search")
    parser.add_argument("--report", type=Path)
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    lines = wanted.folder / LINES
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    if wanted.report is not None:
        environment = environment_of(wanted.budget)
        kept = {"environment": environment, "jobs": rows}
        wanted.report.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        wanted.report.with_suffix(".md").write_text(report(rows, environment), encoding="utf-8")
        return
    for job in wanted.jobs.split(","):
        if job not in {row["job"] for row in rows}:
            try:
                row = {"job": job, "short": wanted.budget, "long": wanted.long, **compared(job, wanted)}
            except JobFailed as error:
                print(f"{job}: {error}", file=sys.stderr, flush=True)
                continue
            with lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print("\n".join(cells(row)), flush=True)


def compared(job: str, wanted: argparse.Namespace) -> dict[str, Any]:
    """One job, searched twice from one recording."""
    folder = wanted.folder.absolute() / Path(job).stem
    recording = folder / "recording"
    if not (recording / "manifest.json").exists():
        steptime("run", "--quiet", "--recording", str(recording), "--", sys.executable, str(ROOT / job))
    found = {}
    for name, budget, most in (("five", wanted.budget, USUAL), ("all", wanted.long, ALL)):
        reported = folder / name / NAME
        reported.parent.mkdir(parents=True, exist_ok=True)
        if not reported.exists():
            steptime(
                "try", "--quiet", "--budget", budget, "--max-trials", str(most), "-o", str(reported), str(recording)
            )
        found[name] = outcome(read_results(reported.parent))
    return found


def outcome(results: Results) -> dict[str, Any]:
    """What a trial ended with. taken: the changes that its patch makes; speed: of all of them together, against the job
    as it is; alone: the speed-up of each variant by itself."""
    alone = [judgement for stage, judgement in results.judgements if stage == 0]
    label, speed = _taken(results)
    return {
        "tried": len(alone),
        "undecided": sum(each.verdict is TrialVerdict.UNDECIDED for each in alone),
        "taken": label,
        "speed": speed,
        "alone": {each.variant.label: found for each in alone if (found := speed_of(each)) is not None},
        "seconds": sum(run.seconds for run in results.runs),
    }


def _taken(results: Results) -> tuple[str, list[float]]:
    """(what was taken, its speed-up): the best one, then each that was adopted on top of those before it, whose
    speed-ups multiply; or all of them together against the job as it is, where that was reached, a stage that repeats
    the last."""
    label, speed = "", AS_IT_IS
    met: set[str] = set()
    for stage, judgement in results.judgements:
        found = speed_of(judgement)
        if judgement.verdict is not TrialVerdict.ADOPT or found is None or judgement.variant.name == PATCH:
            continue
        if stage == 0:
            label, speed = max((label, speed), (judgement.variant.label, found), key=lambda each: each[1][0])
            continue
        speed = found if judgement.variant.name in met else times(speed, found)
        label = judgement.variant.label
        met.add(judgement.variant.name)
    return label, speed


AS_IT_IS = [1.0, 1.0, 1.0]


def times(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """The product of two independent estimates: their intervals add as squares, in the logarithm."""
    value = one[0] * other[0]
    widths = [math.hypot(*(math.log(each[bound] / each[0]) for each in (one, other))) for bound in (1, 2)]
    return [value, value * math.exp(-widths[0]), value * math.exp(widths[1])]


# -- the report -------------------------------------------------------------------------------------------------------


def report(rows: list[dict[str, Any]], environment: dict[str, str]) -> str:
    """Markdown."""
    return "\n".join(
        [
            "# Five minutes of trials against all of them",
            "",
            f"{environment['machine']}, {environment['cpus']} CPUs, Python {environment['python']}, torch "
            f"{environment['torch']}, {environment['date']}; `python -m benchmarks.fixes.budget FOLDER`. Target: at "
            "least 90 % of the gain (of the step's time that is saved). All speeds are measured, with 95 % intervals; "
            "what both searches have tried is compared by what the long one measured. A search whose budget ends "
            "before its changes were run together is told with the product of their speed-ups.",
            "",
            "| job | budget | took | tried (undecided) | taken | speed-up | of the gain |",
            "|---|---|---|---|---|---|---|",
            *(line for row in rows for line in cells(row)),
            "",
        ]
    )


def cells(row: dict[str, Any]) -> list[str]:
    """Two lines of the table."""
    lines = []
    for name, budget in (("five", row["short"]), ("all", row["long"])):
        found = row[name]
        speed = "{:.2f}× ({:.2f} to {:.2f})".format(*found["speed"])
        lines.append(
            f"| {row['job'] if name == 'five' else ''} | {budget} | {found['seconds'] / 60:.1f} min | {found['tried']} "
            f"({found['undecided']}) | {found['taken'] or 'nothing'} | {speed} | "
            f"{reached(row) if name == 'five' else ''} |"
        )
    return lines


def reached(row: dict[str, Any]) -> str:
    """The share of the long search's gain: one clock for both wherever it tried the same, as two trials of the same
    changes differ by chance."""
    five, all_ = row["five"], row["all"]
    if five["taken"] == all_["taken"]:
        return "the same changes"
    speed = all_["alone"].get(five["taken"], five["speed"])
    return f"{_saved(speed) / _saved(all_['speed']):.0%}" if all_["taken"] else "it took nothing"


def _saved(speed: list[float]) -> float:
    return 1 - 1 / speed[0]


if __name__ == "__main__":
    main()
