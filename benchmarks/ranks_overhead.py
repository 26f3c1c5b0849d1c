"""What the watch costs a job of two ranks that exchange gradients over gloo, per step.

    python -m benchmarks.ranks_overhead [--pairs 120] --name epyc-2cpu

Writes benchmarks/results/ranks-overhead-<name>.json and .md. Blocks with the watch on and off follow one another in
drawn order, at the same steps on both ranks. Figures are medians of pairs with the 95 % interval of the median, next to
what the same method finds between two halves that do not differ (A/A).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kept import machine
from benchmarks.overhead import Figure, span
from steptime.launcher.launch import probe_environment
from steptime.launcher.outcome import ProbeOptions

HERE = Path(__file__).parent
JOB = HERE / "ranks_overhead_job.py"
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
WALL, CPU = 0, 1


def measured(pairs: int) -> list[dict[str, Any]]:
    """What each rank has measured."""
    with tempfile.TemporaryDirectory() as folder:
        recording, results = Path(folder).resolve() / "recording", Path(folder).resolve() / "results"
        recording.mkdir()
        results.mkdir()
        plain = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment = {**plain, **probe_environment(recording, ProbeOptions(profile=False)), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, *LAUNCHER, str(JOB), str(results), str(pairs)]
        subprocess.run(words, env=environment, check=True, capture_output=True)
        return [json.loads(path.read_text()) for path in sorted(results.glob("rank-*.json"))]


def row(rank: dict[str, Any], which: int) -> dict[str, Any]:
    """One clock of one rank."""
    wall = statistics.median(off[WALL] for _, off in rank["on_off"])
    return {
        "step_ms": wall / 1e6,
        "watch_us": asdict(Figure.of([(on[which] - off[which]) / 1e3 for on, off in rank["on_off"]])),
        "same_us": asdict(Figure.of([(on[which] - off[which]) / 1e3 for on, off in rank["off_off"]])),
        "share": asdict(Figure.of([(on[which] - off[which]) / wall for on, off in rank["on_off"]])),
        "same_share": asdict(Figure.of([(on[which] - off[which]) / wall for on, off in rank["off_off"]])),
    }


def show(results: dict[str, Any]) -> str:
    """The Markdown next to the JSON."""
    about = results["machine"]
    lines = [
        "# What the watch costs two ranks\n",
        f"{about['cpu']}, {about['cpus']} CPUs, Python {about['python']}, torch {about['torch']}, {about['date']}, "
        f"load {about['load']:.1f}. {results['pairs']} pairs of blocks; medians with 95 % intervals; made by "
        "`python -m benchmarks.ranks_overhead`.\n",
        "| rank | clock | step | watch, µs per step | share of the step | A/A, share |",
        "|---|---|---|---|---|---|",
    ]
    for number, rank in enumerate(results["ranks"]):
        for name, figures in rank.items():
            shares = [
                span({key: 100 * value for key, value in figures[key_of].items()}, 2) + " %"
                for key_of in ("share", "same_share")
            ]
            watch = span(figures["watch_us"], 1)
            lines.append(f"| {number} | {name} | {figures['step_ms']:.1f} ms | {watch} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--name", default=platform.machine() + f"-{os.cpu_count()}cpu")
    wanted = parser.parse_args()
    about, start = machine(), time.perf_counter()
    ranks = [{"wall": row(rank, WALL), "CPU": row(rank, CPU)} for rank in measured(wanted.pairs)]
    results = {"machine": about, "pairs": wanted.pairs, "seconds": time.perf_counter() - start, "ranks": ranks}
    target = HERE / "results" / f"ranks-overhead-{wanted.name}"
    target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    target.with_suffix(".md").write_text(show(results))
    print(show(results))


if __name__ == "__main__":
    main()
