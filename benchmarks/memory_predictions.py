"""How far predictions of memory are off: python -m benchmarks.memory_predictions [--public FOLDER].

Each pair is one job, run without a change and with it, every allocation of the CPU recorded from before the model was
made; what `steptime memory` predicts from the first is held against the peak of the second. FOLDER: public pairs of
snapshots of CUDA's allocator, FOLDER/NAME/without.pickle and FOLDER/NAME/autocast.pickle. Writes
benchmarks/results/memory-predictions.json and .md; the largest error of each kind is in
src/steptime/memory/savings.py and is printed next to each prediction.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.kept import RESULTS, machine
from benchmarks.memory_predictions_job import Job, history_of
from steptime.arrays import Int64
from steptime.memory.breakdown import breakdown_at
from steptime.memory.lives import AllocationHistory, allocated, histories
from steptime.memory.owners import owners_of
from steptime.memory.savings import Peak, autocast_on, autocasting, savings_of, scales_with_batch
from steptime.memory.signs import signs_of
from steptime.memory.snapshot import read_snapshot
from steptime.memory.steps import boundaries_of, steady_of

JOBS = tuple(
    Job(model, batch)
    for model, batches in (("encoder", (4, 16)), ("by-hand", (4, 16)), ("convolutions", (8, 32)), ("wide", (32, 1024)))
    for batch in batches
)
MIB = 1 << 20


@dataclass(frozen=True)
class Pair:
    """Bytes. error: of the predicted peak, as a share of the measured one."""

    kind: str
    job: str
    before: int
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class Seen:
    """A history and what is predicted from it."""

    def __init__(self, history: AllocationHistory) -> None:
        self.history, self.signs = history, signs_of(history.stacks)
        self.boundaries, _ = boundaries_of(history, self.signs)
        self.owners = owners_of(history, self.signs, self.boundaries)
        steady = steady_of(history, self.signs, self.owners)
        self.peak = Peak(history, self.signs, self.owners, steady, None)
        self.before = int(self.peak.live.max())

    def with_saving(self, name: str) -> int:
        """The peak after what `savings_of` calls so; as it is where that is not worth a line."""
        account = breakdown_at(self.history, self.signs, self.owners, self.peak.moment)
        found = savings_of(self.peak, account, (), self.boundaries, ranks=1, samples=None)
        return self.before - sum(each.frees for each in found if name in each.name)

    def with_autocast(self) -> int:
        """Also where it adds memory, which is no saving."""
        assert not autocast_on(self.history, self.signs, self.owners)
        found = autocasting(self.history, self.signs, self.owners)
        change: Int64 | int = found.change if found is not None else 0
        return int((self.peak.live + change).max())

    def with_batch(self, factor: int) -> int:
        """The peak with a batch that much as large."""
        scaling = allocated(self.history, scales_with_batch(self.history, self.signs, self.owners))
        return int((self.peak.live + (factor - 1) * scaling).max())


def peak_of(job: Job) -> int:
    """What the job holds at most, whoever owns it."""
    return int(allocated(history_of(job)).max())


def pairs_of(job: Job) -> Iterator[Pair]:
    """All changes of one job."""
    plain = Seen(history_of(job))
    named = f"{job.model}, batch {job.batch}"

    def pair(kind: str, predicted: int, changed: Job, seen: Seen = plain) -> Pair:
        return Pair(kind, named, seen.before, predicted, peak_of(changed))

    yield pair("autocast", plain.with_autocast(), replace(job, autocast=True))
    yield pair("checkpointing", plain.with_saving("checkpointing"), replace(job, checkpointing=True))
    yield pair("batch", plain.with_saving("micro-batch"), replace(job, batch=job.batch // 2))
    yield pair("batch", plain.with_batch(2), replace(job, batch=job.batch * 2))
    yield pair("8-bit", plain.with_saving("8-bit"), replace(job, optimizer="8-bit"))
    yield pair("in-place", plain.with_saving("fused=True"), replace(job, optimizer="fused"))
    zeros = Seen(history_of(replace(job, zeros=True)))
    yield pair("gradients", zeros.with_saving("set_to_none"), replace(job, early=True), zeros)
    first = Seen(history_of(replace(job, steps=1)))
    yield pair("steady", first.before, job, first)
    without_state = replace(job, optimizer="sgd")
    first = Seen(history_of(replace(without_state, steps=1)))
    yield pair("steady", first.before, without_state, first)


def public_pairs(folder: Path) -> Iterator[Pair]:
    """Of snapshots that others published."""
    for without in sorted(folder.glob("*/without.pickle")):
        seen = Seen(histories(read_snapshot(without))[0])
        changed = histories(read_snapshot(without.with_name("autocast.pickle")))[0]
        measured = int(allocated(changed).max())
        yield Pair("autocast", without.parent.name, seen.before, seen.with_autocast(), measured)


def table(pairs: list[Pair]) -> str:
    """By kind, then every pair."""
    lines = ["| kind | pairs | median error | largest |", "| --- | --- | --- | --- |"]
    for kind in dict.fromkeys(each.kind for each in pairs):
        errors = [abs(each.error) for each in pairs if each.kind == kind]
        lines.append(f"| {kind} | {len(errors)} | {statistics.median(errors):.1%} | {max(errors):.1%} |")
    lines += ["", "| kind | job | peak before, MiB | predicted | measured | error |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for each in pairs:
        sizes = " | ".join(f"{size / MIB:,.1f}" for size in (each.before, each.predicted, each.measured))
        lines.append(f"| {each.kind} | {each.job} | {sizes} | {each.error:+.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the pairs and writes what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--public", type=Path, help="a folder of public pairs of snapshots")
    public = parser.parse_args().public
    torch.set_num_threads(1)
    pairs = list(public_pairs(public)) if public else []
    for job in JOBS:
        pairs += pairs_of(job)
    pairs.sort(key=lambda each: each.kind)
    text = (__doc__ or "").split("\n\n", 1)[1]
    facts = {"machine": machine(), "pairs": [{**asdict(each), "error": round(each.error, 4)} for each in pairs]}
    (RESULTS / "memory-predictions.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    page = f"# Predictions of memory\n\n{text}\n{table(pairs)}"
    (RESULTS / "memory-predictions.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
