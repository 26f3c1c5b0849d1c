"""Whether the cost that steptime prints is the one that it has: time of a job under `steptime run` less that of the job
alone, next to what the report says.

    python -m benchmarks.own_cost [--wall] [--rounds N] [--at-once N] [--only KINDS]

Writes benchmarks/results/own-cost-<machine>.json and .md after every pair of runs. Each pair is one job bare and
watched, one right after the other, in drawn order.

As a rule both are CPU time of the job, on the process's CPU clock, which the probe's stands for in these runs
(`own_cost_clock.py`): on a machine that others use wall time differs by more than what is measured, while these jobs
wait for nothing. With --wall they are what a user would read off a watch on an idle machine: the whole command's wall
time, and all that the report tells, what is around the job included.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.kept import machine
from benchmarks.overhead import environment
from benchmarks.started import STEPTIME

HERE = Path(__file__).parent
CLOCK, JOB = HERE / "own_cost_clock.py", HERE / "own_cost_job.py"
JOBS = (
    ("operators", 60),
    ("operators", 12),
    ("perceptron", 3000),
    ("layers", 60),
    ("large", 40),
    ("rollouts", 400),
    ("python", 200),
)
"""(kind, steps). Of "operators", the second ends soon behind the first windows."""


def taken(words: Sequence[str], *, wall: bool) -> float:
    """Seconds that a command takes: wall time, or CPU time of the job, which the clock prints."""
    start = time.perf_counter()
    finished = subprocess.run(words, env=environment(), capture_output=True, check=True, text=True)
    if wall:
        return time.perf_counter() - start
    return float(finished.stdout.split()[-1])


def reported(report: Path, *, wall: bool) -> dict[str, float]:
    """Seconds by what the report says of its own cost."""
    process = json.loads(report.read_text())["processes"][0]
    cost, total = process["cost"], process["case"]["step"]["total"]
    watch = cost["watch"]
    always = watch["value"] if watch is not None and watch["low"] > 0 else cost["computed"] or 0.0
    found = {"once": (cost["pause_ns"] + cost["slowed_ns"]) / 1e9, "always": always * total / 1e9}
    return {**found, "around": (cost["before_ns"] + cost["after_ns"]) / 1e9} if wall else found


def pair(kind: str, steps: int, number: int, *, wall: bool) -> dict[str, Any]:
    """One run of each."""
    job = [sys.executable, *([] if wall else [str(CLOCK)]), str(JOB), kind, str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--no-peaks", "--full", "--recording", f"{folder}/recording", "-o", str(report)]
        commands = {"bare": job, "watched": [*STEPTIME, "run", *options, "--", *job]}
        order = random.Random(f"{kind} {steps} {number}").sample(list(commands), 2)
        found = {name: taken(commands[name], wall=wall) for name in order}
        parts = reported(report, wall=wall)
    return {**found, "added": found["watched"] - found["bare"], "told": sum(parts.values()), **parts}


def show(results: dict[str, Any]) -> str:
    """The Markdown next to the JSON."""
    about, names = results["measured"], ["told", *results["parts"]]
    lines = [
        "# The cost that is printed, and the one that was measured\n",
        f"{about['cpu']}, {about['cpus']} CPUs, Python {about['python']}, torch {about['torch']}, {about['date']}, "
        f"{about['commit']}, load {about['load']:.1f}. Made by `python -m benchmarks.own_cost`. Seconds of "
        f"{results['of']}: the medians of pairs, bare and watched, and, of what was added, the smallest and largest.\n",
        f"| job | steps | pairs | bare | added, measured | {' | '.join(names)} |",
        "|---" * (5 + len(names)) + "|",
    ]
    for row in results["jobs"]:
        if not (pairs := row["pairs"]):
            continue
        middle = {name: statistics.median(each[name] for each in pairs) for name in pairs[0]}
        added = sorted(each["added"] for each in pairs)
        span = f"{middle['added']:.2f} ({added[0]:.2f} to {added[-1]:.2f})"
        rest = " | ".join(f"{middle[name]:.2f}" for name in names)
        lines.append(f"| {row['kind']} | {row['steps']} | {len(pairs)} | {middle['bare']:.1f} | {span} | {rest} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures in rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wall", action="store_true", help="wall time of the whole command, on an idle machine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=1, help="pairs that run next to each other, for CPU time")
    parser.add_argument("--only", help="kinds of jobs, with commas between")
    parser.add_argument("--name", default=platform.machine() + f"-{os.cpu_count()}cpu")
    wanted = parser.parse_args()
    chosen = [job for job in JOBS if wanted.only is None or job[0] in wanted.only.split(",")]
    results: dict[str, Any] = {
        "measured": machine(),
        "of": "wall time of the whole command" if wanted.wall else "CPU time of the job",
        "parts": ["once", "always", *(["around"] if wanted.wall else [])],
        "jobs": [{"kind": kind, "steps": steps, "pairs": []} for kind, steps in chosen],
    }
    target = HERE / "results" / f"own-cost-{wanted.name}"

    def measure(row: dict[str, Any], number: int) -> None:
        row["pairs"].append(pair(row["kind"], row["steps"], number, wall=wanted.wall))
        target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        target.with_suffix(".md").write_text(show(results))

    with ThreadPoolExecutor(wanted.at_once) as pool:
        every = [pool.submit(measure, row, number) for number in range(wanted.rounds) for row in results["jobs"]]
        for each in every:
            each.result()
    print(show(results))


if __name__ == "__main__":
    main()
