"""Accounts of instants: of an allocator whose truth is known, and of public snapshots."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory.allocator import BATCH, BUILD, FORWARD, MODULE, TRAIN, Allocator, frame, train, triage_of

from steptime.errors import ImbalanceError
from steptime.memory.breakdown import MemoryBreakdown, breakdown_at
from steptime.memory.lives import alive_at, allocated, histories
from steptime.memory.owners import Owner, owners_of
from steptime.memory.signs import signs_of
from steptime.memory.snapshot import read_snapshot
from steptime.memory.steps import boundaries_of
from steptime.memory.triage import triage

SNAPSHOTS = ("medium_128_training", "medium_512_inference", "medium_512_training")


def replayed(snapshot: dict[str, Any]) -> tuple[int, int]:
    """The peak and the end, by walking the events backwards from what is there: nothing of ours in it."""
    live = sum(
        b["requested_size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    )
    end = peak = live
    for event in reversed(snapshot["device_traces"][0]):
        live += {"alloc": -1, "free_requested": 1}.get(event["action"], 0) * event["size"]
        peak = max(peak, live)
    return peak, end


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_peak_of_a_public_snapshot_is_that_of_an_independent_replay(shared_data: Path, name: str) -> None:
    path = shared_data / "snapshots" / f"{name}_memory_snapshot.pickle"
    peak, end = replayed(pickle.loads(path.read_bytes()))
    history = histories(read_snapshot(path))[0]
    live = allocated(history)
    assert (int(live.max()), int(live[-1])) == (peak, end)
    assert int(history.lives.size[alive_at(history, int(np.argmax(allocated(history))) - 1)].sum()) == peak


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_account_of_a_public_snapshot_sums_to_reserved_at_every_instant(shared_data: Path, name: str) -> None:
    path = shared_data / "snapshots" / f"{name}_memory_snapshot.pickle"
    truth = pickle.loads(path.read_bytes())
    history = histories(read_snapshot(path))[0]
    signs = signs_of(history.stacks)
    owners = owners_of(history, signs, boundaries_of(history, signs)[0])
    for event in np.linspace(-1, history.events - 1, 25).astype(int).tolist():
        breakdown = breakdown_at(history, signs, owners, event)
        assert sum(size for _, size in breakdown.entries) == breakdown.reserved == history.reserved[event + 1]
        assert sum(line.bytes for line in breakdown.lines) == breakdown.live
    assert breakdown.reserved == sum(segment["total_size"] for segment in truth["segments"])
    assert breakdown.live == sum(
        b["requested_size"] for s in truth["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    )


def test_a_public_training_job_has_the_owners_that_its_model_says(shared_data: Path) -> None:
    """GPT-2 medium of the course's assignment: 423.2 million parameters in float32, AdamW, 24 blocks, 219 tensors."""
    path = shared_data / "snapshots" / "medium_512_training_memory_snapshot.pickle"
    found = triage(histories(read_snapshot(path))[0])
    parameters = found.breakdown.of(Owner.PARAMETERS)
    assert parameters / 4 == pytest.approx(423.2e6, rel=0.001)
    assert found.breakdown.of(Owner.OPTIMIZER_STATE) == pytest.approx(2 * parameters, rel=0.001)
    assert found.breakdown.of(Owner.ACTIVATIONS) > 0.5 * found.breakdown.reserved
    assert found.savings[0].name == "activation checkpointing of the 24 blocks called at model.py:253"
    at_end = histories(read_snapshot(path))[0]
    signs = signs_of(at_end.stacks)
    owners = owners_of(at_end, signs, boundaries_of(at_end, signs)[0])
    breakdown = breakdown_at(at_end, signs, owners, at_end.events - 1)
    assert breakdown.of(Owner.GRADIENTS) == parameters
    assert breakdown.of(Owner.OPTIMIZER_STATE) == 2 * parameters


def test_an_account_that_does_not_sum_raises() -> None:
    with pytest.raises(ImbalanceError):
        MemoryBreakdown(0, 100, ((Owner.PARAMETERS, 60), (Owner.CACHED, 39)))
    with pytest.raises(ImbalanceError):
        MemoryBreakdown(0, 100, ((Owner.PARAMETERS, 160), (Owner.CACHED, -60)))


def test_the_owners_of_a_training_step_are_reported_apart(tmp_path: Path) -> None:
    allocator = Allocator()
    for size in (400_000, 100_000):
        allocator.malloc(size, BUILD)
    train(allocator, 4)
    found = triage_of(allocator, tmp_path)
    breakdown = found.breakdown
    assert found.peak == allocator.peak
    assert breakdown.of(Owner.PARAMETERS) == 500_000
    assert breakdown.of(Owner.OPTIMIZER_STATE) == 1_000_000
    assert breakdown.of(Owner.ACTIVATIONS) == 900_003
    assert breakdown.of(Owner.INPUTS) == 50_000
    assert breakdown.of(Owner.GRADIENTS) == 500_000
    assert breakdown.of(Owner.TEMPORARIES) == 90_000
    assert breakdown.of(Owner.KEPT) == breakdown.of(Owner.EARLIER) == 0
    assert (found.steps, found.boundary_source) == (4, "the optimizer's steps")
    line = next(line for line in breakdown.lines if line.owner is Owner.ACTIVATIONS)
    assert line.source is not None
    assert (line.source.file, line.source.line, line.blocks) == ("/home/me/model.py", 54, 3)


def test_what_was_there_before_the_recording_is_reported_apart_by_its_sizes(tmp_path: Path) -> None:
    weights = (400_000, 100_000, 30_000)
    allocator = Allocator(recording=False)
    for size in weights:
        allocator.malloc(size, [])
    train(allocator, 1, weights)
    kept = allocator.malloc(77_777, [])
    allocator.recording = True
    train(allocator, 3, weights)
    breakdown = triage_of(allocator, tmp_path).breakdown
    assert kept
    assert breakdown.of(Owner.PARAMETERS) == sum(weights)
    assert breakdown.of(Owner.OPTIMIZER_STATE) == 4 * sum(weights)  # its blocks have stacks, those of the weights none
    assert breakdown.of(Owner.EARLIER) == 77_777


def test_without_frames_the_sizes_and_lives_still_give_an_account(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 6)
    snapshot = allocator.snapshot()
    for event in snapshot["device_traces"][0]:
        event["frames"] = []
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            block["frames"] = []
    path = tmp_path / "bare.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    found = triage(histories(read_snapshot(path))[0])
    assert found.peak == allocator.peak
    assert found.breakdown.reserved == allocator.segment * len(allocator.segments)
    assert found.boundary_source == "requests that repeat"
    assert found.steps == 5


def test_a_history_that_was_cut_at_its_start_keeps_its_balance(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 6)
    peak = allocator.peak
    del allocator.events[: len(allocator.events) // 2 + 3]  # a ring of events that was too short
    found = triage_of(allocator, tmp_path)
    assert found.peak == peak
    assert not found.problems


def test_memory_that_other_streams_still_use_is_an_account_of_its_own(tmp_path: Path) -> None:
    allocator = Allocator()
    held = allocator.malloc(5000, BATCH)
    allocator.free(held)
    del allocator.events[-1]  # not completed
    snapshot = allocator.snapshot()
    snapshot["segments"][0]["blocks"] = [
        {"address": held, "size": 5120, "requested_size": 5000, "state": "active_awaiting_free", "frames": BATCH},
        {"address": held + 5120, "size": allocator.segment - 5120, "requested_size": 0, "state": "inactive"},
    ]
    path = tmp_path / "awaiting.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    history = histories(read_snapshot(path))[0]
    signs = signs_of(history.stacks)
    breakdown = breakdown_at(history, signs, owners_of(history, signs, ()), history.events - 1)
    assert breakdown.of(Owner.AWAITING) == 5120
    assert breakdown.live == 0


def test_fragmentation_is_what_stands_in_the_way_when_enough_is_free_in_pieces(tmp_path: Path) -> None:
    allocator = Allocator(segment=1 << 20)
    blocks = [allocator.malloc(200_000, FORWARD) for _ in range(20)]
    for block in blocks[::2]:
        allocator.free(block, FORWARD)
    allocator.fail(900_000, FORWARD, free=1000)
    found = triage_of(allocator, tmp_path)
    assert found.moment == "when memory ran out"
    assert found.failure is not None
    assert found.fragmentation is not None
    assert (found.failure.asked, found.failure.driver_free) == (900_000, 1000)
    assert "fragmentation" in found.failure.obstacle
    assert found.fragmentation.largest == allocator.largest_gap
    assert found.fragmentation.free == len(allocator.segments) * allocator.segment - 10 * 200_192
    assert found.fragmentation.in_used == found.breakdown.of(Owner.FRAGMENTS)
    assert any("expandable_segments" in saving.name for saving in found.savings)
    assert found.failure.source is not None
    assert found.failure.source.line == 54


def test_tensors_are_what_stands_in_the_way_when_little_is_free(tmp_path: Path) -> None:
    allocator = Allocator(segment=1 << 20)
    for _ in range(5):
        allocator.malloc(1 << 20, FORWARD)
    allocator.fail(1 << 20, FORWARD, free=300)
    found = triage_of(allocator, tmp_path)
    assert found.failure is not None
    assert found.failure.obstacle.startswith("tensors: 5 MiB were alive")
    assert found.capacity == 5 * (1 << 20) + 300
    assert found.failure.others is None


def test_what_others_hold_of_a_device_of_known_size_is_reported(tmp_path: Path) -> None:
    allocator = Allocator(segment=1 << 20)
    for _ in range(5):
        allocator.malloc(1 << 20, FORWARD)
    allocator.fail(1 << 20, FORWARD, free=300)
    crowded, alone = (triage_of(allocator, tmp_path, size).failure for size in (12 << 20, (5 << 20) + 300))
    assert crowded is not None
    assert crowded.others == (7 << 20) - 300
    assert "7.00 MiB of the device belonged to others" in crowded.obstacle
    assert alone is not None
    assert alone.others == 0
    assert "not this process's" not in alone.obstacle


def test_segments_that_came_and_went_are_undone_at_the_peak(tmp_path: Path) -> None:
    allocator = Allocator(segment=1 << 20)
    one = allocator.malloc(1 << 20, FORWARD)
    other = allocator.malloc(1 << 20, FORWARD)
    allocator.free(one, FORWARD)
    allocator.free(other, FORWARD)
    gone = allocator.segments.pop()
    allocator._event("segment_free", gone, allocator.segment, [])
    found = triage_of(allocator, tmp_path)
    assert found.breakdown.reserved == found.peak == 2 << 20
    assert found.fragmentation is not None
    assert found.fragmentation.free == 0
    assert found.timeline[-1].reserved == 1 << 20


def test_checkpointing_is_proposed_for_the_line_that_calls_the_blocks(tmp_path: Path) -> None:
    callers = [MODULE, frame("/home/me/model.py", 80, "forward"), MODULE, TRAIN]
    allocator = Allocator()
    train(allocator, 1)
    kept = [allocator.malloc(1_000_000, [frame("/home/me/model.py", 20 + part, "forward"), *callers]) for part in
            range(4) for _ in range(6)]  # fmt: skip
    for each in kept:
        allocator.free(each, [])
    train(allocator, 1)
    saving = next(s for s in triage_of(allocator, tmp_path).savings if "checkpointing" in s.name)
    assert saving.source is not None
    assert saving.source.line == 80
    assert "the 6 blocks" in saving.name
    assert saving.frees == 24_000_000 * 5 // 6 - 6_000_000


def test_a_larger_batch_is_measured_where_it_binds(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 3)
    found = triage_of(allocator, tmp_path, capacity=100 << 20)
    assert found.fit is not None
    fixed, scaling = 1_000_000 + 500_000, 50_000 + 900_003 + 90_000
    assert found.fit.least == found.fit.most == pytest.approx((0.9 * (100 << 20) - fixed) / scaling, rel=0.01)
    small = triage_of(allocator, tmp_path, capacity=2_000_000)
    assert small.fit is not None
    assert small.fit.most < 1
