"""A recording of many ranks: what diagnosing it costs.

    python -m benchmarks.fleet_recorded --ranks 1024 --steps 600 [--keep]

Runs examples/ddp_late_rank.py on two gloo ranks, copies its punctual rank as often as needed and the late one once, and
lets sixteen of them have traces, as `--trace-ranks auto` does. Appends to benchmarks/results/fleet.jsonl with --keep.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from steptime.diagnosis import diagnose_paths

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "ddp_late_rank.py"
RESULTS = Path(__file__).parent / "results" / "fleet.jsonl"
MOST_TRACED = 16
"""Ranks that `--trace-ranks auto` picks."""
NODE = 8
"""Ranks of a host."""


def record(folder: Path, steps: int) -> Path:
    """The example's recording."""
    steptime = [sys.executable, "-c", "from steptime.cli.main import entry; entry()", "run", "--quiet"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*steptime, "--no-peaks", "--recording", str(folder / "base"), "--", *torchrun, str(EXAMPLE)]
    subprocess.run([*words, "--steps", str(steps)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder / "base"


def multiply(base: Path, folder: Path, ranks: int, late: int) -> None:
    """The same with many ranks."""
    folder.mkdir()
    shutil.copy(base / "manifest.json", folder)
    facts = {path: json.loads((path / "process.json").read_text()) for path in base.glob("process-*")}
    of_rank = {each["rank"]: path for path, each in facts.items()}
    traced = {round(number * (ranks - 1) / (MOST_TRACED - 1)) for number in range(MOST_TRACED)}
    for rank in range(ranks):
        source, process = of_rank[int(rank == late)], folder / f"process-{10_000 + rank}"
        process.mkdir()
        changed = {"rank": rank, "world_size": ranks, "pid": 10_000 + rank, "host": f"node{rank // NODE}"}
        (process / "process.json").write_text(json.dumps({**facts[source], **changed}))
        lines = (source / "facts.jsonl").read_text().splitlines(keepends=True)
        kept = [line for line in lines if rank in traced or json.loads(line)["fact"] != "trace"]
        (process / "facts.jsonl").write_text("".join(kept))
        for file in source.iterdir():
            if file.name.startswith("journal") or (rank in traced and file.name.startswith("trace")):
                shutil.copy(file, process)


def cost(folder: Path, ranks: int, late: int, workers: int) -> dict[str, object]:
    """CPU seconds, of us and of the workers, and the largest memory of either."""
    start, before = time.perf_counter(), _cpu()
    report = diagnose_paths((str(folder),), workers=workers)
    wall, spent = time.perf_counter() - start, _cpu() - before
    found = report.ranks.late if report.ranks is not None else None
    own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "what": "recorded",
        "ranks": ranks,
        "workers": workers,
        "steps": len(report.processes[0].step_ns),
        "megabytes": round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1),
        "cpu_seconds": round(spent, 1),
        "cpu_seconds_per_1000": round(1000 * spent / ranks, 1),
        "wall_seconds": round(wall, 1),
        "memory_megabytes": round((own + workers * child) / 1024),
        "right": found is not None and found.ranks == (late,),
    }


def _cpu() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main() -> None:
    """Makes the recording, measures, prints, and keeps the row where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="only diagnose a recording that is there")
    parser.add_argument("--keep", action="store_true", help="append the result to benchmarks/results/fleet.jsonl")
    arguments = parser.parse_args()
    late = arguments.ranks * 2 // 3
    if arguments.measure is not None:
        print(json.dumps(cost(arguments.measure, arguments.ranks, late, arguments.workers)))
        return
    with tempfile.TemporaryDirectory() as folder:
        base = record(Path(folder), arguments.steps)
        multiply(base, Path(folder) / "fleet", arguments.ranks, late)
        # Anew, as the largest memory of a process's children is that of all it ever had.
        words = [sys.executable, __file__, *sys.argv[1:], "--measure", str(Path(folder) / "fleet")]
        row = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    print(json.dumps(row))
    if arguments.keep:
        machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "when": time.strftime("%Y-%m-%d")}
        with RESULTS.open("a") as results:
            results.write(json.dumps({**row, **machine}) + "\n")


if __name__ == "__main__":
    main()
