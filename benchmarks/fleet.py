"""Many ranks: what analysing them costs, and how often the late one is found.

    python -m benchmarks.fleet --ranks 1024 --cases 200

Needs the real traces next to the project (or $STEPTIME_DATA). `cost` writes a fleet of real traces, bent by jitter, and
diagnoses it as `steptime diagnose` does; `found` compares fleets of summaries, bent likewise, with and without a late
rank. Results are appended to benchmarks/results/fleet.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.fleet_traces import Base, Plan, bend, read_base, write_fleet
from steptime.analysis.stragglers.fleet import Task, reduce_rank
from steptime.analysis.stragglers.straggler import compare
from steptime.analysis.stragglers.summary import RankSummary
from steptime.diagnosis import diagnose_paths
from steptime.trace.gather import gather

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("STEPTIME_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "fleet.jsonl"


def cost(base: Base, ranks: int, workers: int) -> dict[str, object]:
    """CPU seconds, of us and of the workers, and the largest memory, of a diagnosis of traces."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    try:
        late = ranks * 2 // 3
        files = write_fleet(base, Plan(ranks, 1, late=(late,)), folder)
        packed = sum(path.stat().st_size for path in files)
        size = reduce_rank(Task(0, gather([str(files[0])]).ranks[0]))
        before, start = _cpu(), time.perf_counter()
        report = diagnose_paths((str(folder),), cache=False, workers=workers)
        spent, wall = _cpu() - before, time.perf_counter() - start
    finally:
        shutil.rmtree(folder)
    found = report.ranks.late if report.ranks is not None else None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "what": "cost",
        "ranks": ranks,
        "workers": workers,
        "json_megabytes_each": round(len(json.dumps(base.document)) / 1e6, 2),
        "packed_megabytes": round(packed / 1e6, 1),
        "cpu_seconds": round(spent, 1),
        "cpu_seconds_per_1000": round(1000 * spent / ranks, 1),
        "wall_seconds": round(wall, 1),
        "memory_megabytes": round((own + workers * child) / 1024),
        "late": list(found.ranks) if found is not None else [],
        "right": found is not None and found.ranks == (late,),
        "summary_ok": size.summary is not None,
    }


def _cpu() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def found(base: Base, summary: RankSummary, ranks: int, cases: int) -> dict[str, object]:
    """How often the planted rank is the one that is named, and how often one is named where none is late."""
    right = wrong = alarms = 0
    for seed in range(cases):
        random = np.random.default_rng(10_000 + seed)
        late, excess = int(random.integers(ranks)), float(random.uniform(0.1, 0.5))
        planted = compare(fleet_of(base, summary, Plan(ranks, seed, late=(late,), excess=excess)))
        healthy = compare(fleet_of(base, summary, Plan(ranks, seed + cases)))
        named = planted.late.ranks if planted is not None and planted.late is not None else ()
        right += named == (late,)
        wrong += named not in ((late,), ())
        alarms += healthy is not None and healthy.late is not None
    return {
        "what": "found",
        "ranks": ranks,
        "cases": cases,
        "right": right / cases,
        "wrong": wrong / cases,
        "false_alarms": alarms / cases,
    }


def fleet_of(base: Base, summary: RankSummary, plan: Plan) -> list[RankSummary]:
    """Summaries as their traces would give them: the same bending, without writing and reading a file for each."""
    start, end = (np.rint(1000 * each).astype(np.int64) for each in bend(base, plan))
    order = np.argsort(base.start, kind="stable")
    return [_bent(summary, rank, start[rank][order], end[rank][order], plan) for rank in range(plan.ranks)]


def _bent(summary: RankSummary, rank: int, start: np.ndarray, end: np.ndarray, plan: Plan) -> RankSummary:
    starts = np.sort(np.concatenate([each.start for each in summary.exchanges]))
    exchanges = []
    for each in summary.exchanges:
        at = np.searchsorted(starts, each.start)
        exchanges.append(replace(each, start=start[at], duration=end[at] - start[at]))
    return replace(summary, rank=rank, name=f"rank {rank}", exchanges=tuple(exchanges), world=plan.ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--case-ranks", type=int, default=64)
    parser.add_argument("--keep", action="store_true", help="append the results to benchmarks/results/fleet.jsonl")
    arguments = parser.parse_args()
    files = sorted((DATA / "param" / "dlrm_kineto").glob("*.json.gz"))
    base = read_base(files)
    rows = []
    if arguments.cases:
        summary = reduce_rank(Task(0, gather([str(files[0])]).ranks[0])).summary
        assert summary is not None
        rows.append(found(base, summary, arguments.case_ranks, arguments.cases))
    if arguments.ranks:
        rows.append(cost(base, arguments.ranks, arguments.workers))
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "when": time.strftime("%Y-%m-%d")}
    for row in rows:
        print(json.dumps(row))
        if arguments.keep:
            with RESULTS.open("a") as results:
                results.write(json.dumps({**row, **machine}) + "\n")


if __name__ == "__main__":
    main()
