"""Whether the cost that steptime prints is the one that it has: wall time of `steptime run` less that of the job alone.

    python -m benchmarks.own_cost [--rounds N] [--only KINDS]

Each round runs every job bare and watched, one right after the other, in drawn order. Writes
benchmarks/results/own-cost-<machine>.json and .md. What is printed is taken from the report: what was taken once, of
every step, and around the job.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.kept import machine
from benchmarks.overhead import environment
from benchmarks.started import STEPTIME

HERE = Path(__file__).parent
JOB = HERE / "own_cost_job.py"
JOBS = (
    ("operators", 60),
    ("operators", 12),
    ("perceptron", 3000),
    ("workers", 1000),
    ("layers", 80),
    ("large", 60),
    ("rollouts", 600),
    ("python", 300),
)
"""(kind, steps). Of "operators", the second ends soon behind the first windows."""


def wall(words: Sequence[str]) -> float:
    """Seconds that a command takes."""
    begin = time.perf_counter()
    subprocess.run(words, env=environment(), capture_output=True, check=True)
    return time.perf_counter() - begin


def told(report: Path) -> dict[str, float]:
    """Seconds by what the report says of its own cost."""
    process = json.loads(report.read_text())["processes"][0]
    cost, total = process["cost"], process["case"]["step"]["total"]
    watch = cost["watch"]
    always = watch["value"] if watch is not None and watch["low"] > 0 else cost["computed"] or 0.0
    once, around = cost["pause_ns"] + cost["slowed_ns"], cost["before_ns"] + cost["after_ns"]
    return {"once": once / 1e9, "always": always * total / 1e9, "around": around / 1e9}


def pair(kind: str, steps: int, number: int) -> dict[str, Any]:
    """One run of each."""
    job = [sys.executable, str(JOB), kind, str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--no-peaks", "--full", "--recording", f"{folder}/recording", "-o", str(report)]
        commands = {"bare": job, "watched": [*STEPTIME, "run", *options, "--", *job]}
        order = random.Random(f"{kind} {steps} {number}").sample(list(commands), 2)
        taken = {name: wall(commands[name]) for name in order}
        parts = told(report)
    return {**taken, "added": taken["watched"] - taken["bare"], "told": sum(parts.values()), **parts}


def show(results: dict[str, Any]) -> str:
    """The Markdown beside the JSON."""
    about = results["measured"]
    lines = [
        "# The cost that is printed, and the one that was measured\n",
        f"{about['cpu']}, {about['cpus']} CPUs, Python {about['python']}, torch {about['torch']}, {about['date']}, "
        f"{about['commit']}, load {about['load']:.1f}. Made by `python -m benchmarks.own_cost`. Seconds: the median "
        "and, of what was added, all pairs' smallest and largest. Told: of the job while it ran (once, and always "
        "times steps), and around it (steptime's own start, packing, the report).\n",
        "| job | steps | bare | added, measured | told in all | once | always | around |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["jobs"]:
        if not (pairs := row["pairs"]):
            continue
        middle = {name: statistics.median(each[name] for each in pairs) for name in pairs[0]}
        added = sorted(each["added"] for each in pairs)
        span = f"{middle['added']:.2f} ({added[0]:.2f} to {added[-1]:.2f})"
        rest = " | ".join(f"{middle[name]:.2f}" for name in ("told", "once", "always", "around"))
        lines.append(f"| {row['kind']} | {row['steps']} | {middle['bare']:.1f} | {span} | {rest} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures in rounds; writes both files after every pair."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="kinds of jobs, with commas between")
    parser.add_argument("--name", default=platform.machine() + f"-{os.cpu_count()}cpu")
    wanted = parser.parse_args()
    chosen = [job for job in JOBS if wanted.only is None or job[0] in wanted.only.split(",")]
    results: dict[str, Any] = {
        "measured": machine(),
        "jobs": [{"kind": kind, "steps": steps, "pairs": []} for kind, steps in chosen],
    }
    target = HERE / "results" / f"own-cost-{wanted.name}"
    for number in range(wanted.rounds):
        for row in results["jobs"]:
            row["pairs"].append(pair(row["kind"], row["steps"], number))
            target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
            target.with_suffix(".md").write_text(show(results))
    print(show(results))


if __name__ == "__main__":
    main()
