"""Traces of a made-up fleet: one real rank's trace, bent so that its collectives fit those of a thousand others.

Every rank does the same work between two collectives, with jitter of its own; a late one takes longer. A collective
ends on all ranks at once, a transfer after the last of them has come. The time of the real trace is stretched piece by
piece so that its collectives start and end there, and everything else of it moves along.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from steptime.arrays import Float64

LEVEL = 1


@dataclass(frozen=True)
class Plan:
    """late: ranks, each `excess` of a step behind in every step, spread over its pieces of work. jitter: of each piece,
    speed: of each rank, both as standard deviations of a logarithm."""

    ranks: int
    seed: int
    late: tuple[int, ...] = ()
    excess: float = 0.15
    jitter: float = 0.03
    speed: float = 0.01


@dataclass(frozen=True)
class Base:
    """The real rank. start, end: (k,) µs of its collectives in order, `step`: (2,) µs."""

    document: dict[str, Any]
    events: list[dict[str, Any]] = field(repr=False)
    start: Float64
    end: Float64
    transfer: Float64
    step: Float64


def read_base(paths: list[Path]) -> Base:
    """The first of some real ranks; how long a transfer takes is the shortest on any of them."""
    documents = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    spans = [_collectives(document) for document in documents]
    shortest = np.min([end - start for start, end in spans], axis=0)
    start, end = spans[0]
    events = [event for event in documents[0]["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    steps = [event for event in events if str(event.get("name", "")).startswith("ProfilerStep")]
    step = np.array([steps[0]["ts"], max(steps[0]["ts"] + steps[0]["dur"], end[-1])], float)
    return Base(documents[0], events, start, end, shortest, step)


def _collectives(document: dict[str, Any]) -> tuple[Float64, Float64]:
    kernels = [
        event
        for event in document["traceEvents"]
        if event.get("cat") == "kernel" and "nccl" in str(event.get("name", "")).lower()
    ]
    kernels.sort(key=lambda event: float(event["ts"]))
    start = np.array([float(event["ts"]) for event in kernels])
    return start, start + np.array([float(event["dur"]) for event in kernels])


def bend(base: Base, plan: Plan) -> tuple[Float64, Float64]:
    """(start, end): (ranks, k) µs of the collectives on each rank, since the start of the step."""
    random = np.random.default_rng(plan.seed)
    before = np.concatenate((base.step[:1], base.end[:-1]))
    own = np.maximum(base.start - before, 1.0)  # what the rank did itself before each collective
    speed = random.normal(0, plan.speed, (plan.ranks, 1))
    work = own * np.exp(speed + random.normal(0, plan.jitter, (plan.ranks, len(own))))
    late = list(plan.late)
    work[late] += plan.excess * (base.step[1] - base.step[0]) * own / own.sum()
    start, end = np.zeros_like(work), np.zeros_like(work)
    reached = 0.0
    for k in range(len(own)):
        start[:, k] = reached + work[:, k]
        reached = float(start[:, k].max() + base.transfer[k])
        end[:, k] = reached
    return start, end


def write_fleet(base: Base, plan: Plan, folder: Path) -> list[Path]:
    """A file for each rank, of one step; the whole fleet on one clock, which nobody may rely on."""
    folder.mkdir(parents=True, exist_ok=True)
    start, end = bend(base, plan)
    return [_write(base, rank, plan, start[rank], end[rank], folder) for rank in range(plan.ranks)]


def _write(base: Base, rank: int, plan: Plan, start: Float64, end: Float64, folder: Path) -> Path:
    real = np.concatenate((base.step[:1], np.stack((base.start, base.end), 1).ravel()))
    made = np.concatenate(([0.0], np.stack((start, end), 1).ravel()))
    times = np.array([float(event["ts"]) for event in base.events])
    ends = times + np.array([float(event["dur"]) for event in base.events])
    shift = base.step[0] + 1000.0 * (rank % 7)  # clocks differ

    def bent(at: Float64) -> Float64:
        inside = np.interp(at, real, made)
        outside = np.where(at < real[0], at - real[0], inside)
        there: Float64 = np.where(at > real[-1], made[-1] + at - real[-1], outside) + shift
        return there

    moved, reached = bent(times), bent(ends)
    events = [
        {**event, "ts": round(at, 3), "dur": round(stop - at, 3)}
        for event, at, stop in zip(base.events, moved.tolist(), reached.tolist(), strict=True)
    ]
    facts = {**base.document.get("distributedInfo", {}), "rank": rank, "world_size": plan.ranks}
    document = {**base.document, "distributedInfo": facts, "traceEvents": events}
    path = folder / f"rank{rank}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode(), LEVEL))
    return path
