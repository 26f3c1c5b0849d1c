"""What five minutes of `steptime try` reach of what an exhaustive search finds: every proposal, with time enough to
decide each.

    python benchmarks/remedies/budget.py FOLDER [--jobs SCRIPT,…] [--budget 5m] [--long 25m]
    python benchmarks/remedies/budget.py FOLDER --report benchmarks/results/budget-<machine>

Recordings and results go into FOLDER; what is in it already is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from run import environment_of

from steptime.trials.results import NAME, Results, read_results
from steptime.trials.trial import Judgement, Verdict

ROOT = Path(__file__).parents[2]
LAUNCHER = [sys.executable, "-c", "from steptime.cli.main import entry; entry()"]
SCRIPTS = "tests/jobs/faults/scripts"
JOBS = ("examples/slow_input.py", f"{SCRIPTS}/pointwise_chain.py", f"{SCRIPTS}/slow_collate.py")
LINES = "budget.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default=",".join(JOBS), help="scripts, with commas between")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--long", default="25m", help="of the exhaustive search")
    parser.add_argument("--report", type=Path)
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    lines = wanted.folder / LINES
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    if wanted.report is not None:
        kept = {"environment": environment_of(wanted.budget), "jobs": rows}
        wanted.report.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        wanted.report.with_suffix(".md").write_text(report(rows, kept["environment"]), encoding="utf-8")
        return
    for job in wanted.jobs.split(","):
        if job not in {row["job"] for row in rows}:
            row = {"job": job, "short": wanted.budget, "long": wanted.long, **compared(job, wanted)}
            with lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(cells(row), flush=True)


def compared(job: str, wanted: argparse.Namespace) -> dict[str, Any]:
    """One job, searched twice from one recording."""
    folder = wanted.folder.absolute() / Path(job).stem
    recording = folder / "recording"
    if not (recording / "manifest.json").exists():
        _steptime("run", "--quiet", "--recording", str(recording), "--", sys.executable, str(ROOT / job))
    found = {}
    for name, budget, most in (("five", wanted.budget, 6), ("all", wanted.long, 50)):
        told = folder / name / NAME
        told.parent.mkdir(parents=True, exist_ok=True)
        if not told.exists():
            options = ["--quiet", "--budget", budget, "--max-trials", str(most), "-o", str(told)]
            _steptime("try", *options, str(recording))
        found[name] = outcome(read_results(told.parent))
    return found


def _steptime(*words: str) -> None:
    done = subprocess.run([*LAUNCHER, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"steptime {words[0]}: {done.stderr[-1500:]}")


def outcome(results: Results) -> dict[str, Any]:
    """What a trial ended with. taken: its changes; speed: of all of them together, against the job as it is."""
    alone = [judgement for stage, judgement in results.judgements if stage == 0]
    taken = max((each for each in alone if each.verdict is Verdict.ADOPT), key=_gain, default=None)
    later = [(stage, judgement) for stage, judgement in results.judgements if stage > 0]
    if later and later[-1][1].verdict is Verdict.ADOPT:
        taken = later[-1][1]
    return {
        "tried": len(alone),
        "undecided": sum(each.verdict is Verdict.UNDECIDED for each in alone),
        "taken": taken.arm.label if taken is not None else "",
        "speed": _speed(taken),
        "seconds": sum(run.seconds for run in results.runs),
    }


def _gain(judgement: Judgement) -> float:
    return judgement.speed.value if judgement.speed is not None else 0.0


def _speed(judgement: Judgement | None) -> list[float]:
    if judgement is None or judgement.speed is None:
        return [1.0, 1.0, 1.0]
    return [judgement.speed.value, judgement.speed.low, judgement.speed.high]


# -- the report -------------------------------------------------------------------------------------------------------


def report(rows: list[dict[str, Any]], environment: dict[str, str]) -> str:
    """Markdown."""
    return "\n".join(
        [
            "# Five minutes of trials against all of them",
            "",
            f"{environment['machine']}, {environment['cpus']} CPUs, Python {environment['python']}, torch "
            f"{environment['torch']}, {environment['date']}; `python benchmarks/remedies/budget.py FOLDER`. Target: at "
            "least 90 % of the gain. Both speeds are measured, each in its own trial, with 95 % intervals.",
            "",
            "| job | budget | tried (undecided) | taken | speed-up | of the gain |",
            "|---|---|---|---|---|---|",
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
        share = f"{_saved(row['five']) / _saved(row['all']):.0%}" if name == "five" and _saved(row["all"]) else ""
        lines.append(
            f"| {row['job'] if name == 'five' else ''} | {budget} | {found['tried']} ({found['undecided']}) | "
            f"{found['taken'] or 'nothing'} | {speed} | {share} |"
        )
    return lines


def _saved(found: dict[str, Any]) -> float:
    return 1 - 1 / found["speed"][0]


if __name__ == "__main__":
    main()
