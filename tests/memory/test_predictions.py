"""What is predicted of memory: of jobs whose truth is known, and of public pairs of snapshots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import markdown_of, text_of
from memory.allocator import (
    BATCH,
    BUILD,
    ENGINE,
    MODULE,
    STATE,
    TRAIN,
    ZERO_GRAD,
    Allocator,
    frame,
    history_of,
    train,
    triage_of,
)

from steptime.answer.page.frame import as_page
from steptime.memory.answer import answer_of, fitting
from steptime.memory.blocks import block_chart
from steptime.memory.lives import AllocationHistory, histories
from steptime.memory.owners import Owner
from steptime.memory.report import MemoryReport
from steptime.memory.snapshot import NO_STACK, Stacks, read_snapshot
from steptime.memory.triage import MemoryTriage, triage
from steptime.quantities import SourceLine

WEIGHTS = (4_194_304, 12_582_912, 40_960_000)
NORM = 4_096
"""Bytes of a scale: no product reads it, so it has no copy."""
LINE = frame("/home/me/model.py", 39, "forward")


def operator(*names: str) -> list[dict[str, Any]]:
    """C++ frames of torch's operators, the innermost first."""
    return [frame("", 0, f"at::_ops::{name}::call(at::Tensor const&)") for name in names]


def called(line: int, *names: str) -> list[dict[str, Any]]:
    return [*operator(*names), {**LINE, "line": line}, MODULE, TRAIN]


CASTS = [
    frame("??", 0, "at::autocast::cached_cast(c10::ScalarType, at::Tensor const&, c10::DeviceType)"),
    *operator("linear"), LINE, MODULE, TRAIN,
]  # fmt: skip


def step(
    allocator: Allocator,
    state: list[int],
    *,
    cast: bool,
    batch: int = 3_000_000,
    cplusplus: bool = True,
    scratch: int = 1_000,
) -> None:
    """One step of Adam. cast: under autocast. cplusplus: operators are in the stacks. scratch: bytes of the optimizer's
    step."""
    half = 2 if cast else 1
    product = called(39, "bmm", "linear") if cplusplus else [LINE, MODULE, TRAIN]
    kept = []
    for number, size in enumerate((*WEIGHTS, NORM)):
        if cast and size != NORM:
            kept.append(allocator.malloc(size // 2, CASTS if cplusplus else product))
        kept.append(allocator.malloc(batch // half, product))
        exponential = called(60, "exp") if cplusplus else called(60)
        kept.append(allocator.malloc(batch + number, exponential))
    gradients = [allocator.malloc(size, ENGINE) for size in (*WEIGHTS, NORM)]
    for block in reversed(kept):
        allocator.free(block, ENGINE)
    if not state:
        state += [allocator.malloc(size, STATE) for size in (*WEIGHTS, NORM) for _ in range(2)]
    allocator.free(allocator.malloc(scratch, STATE), STATE)
    for block in gradients:
        allocator.free(block, ZERO_GRAD)


def job(folder: Path, steps: int, capacity: int | None = None, **options: Any) -> MemoryTriage:
    allocator = Allocator(segment=1 << 30)
    state: list[int] = []
    for size in (*WEIGHTS, NORM):
        allocator.malloc(size, BUILD)
    for _ in range(steps):
        step(allocator, state, **options)
    return triage_of(allocator, folder, capacity)


def named(found: MemoryTriage, name: str) -> Any:
    return next((each for each in found.savings if name in each.name), None)


@pytest.mark.parametrize("cplusplus", [True, False])
def test_autocasts_copies_of_weights_are_no_activations(tmp_path: Path, cplusplus: bool) -> None:
    found = job(tmp_path, 3, cast=True, cplusplus=cplusplus)
    assert found.autocast
    assert found.breakdown.of(Owner.COPIES) == sum(WEIGHTS) // 2
    assert found.breakdown.of(Owner.ACTIVATIONS) == 4 * (1_500_000 + 3_000_000) + 6
    assert named(found, "autocast") is None


@pytest.mark.parametrize("cplusplus", [True, False])
def test_activations_as_large_as_half_a_weight_are_no_copies(tmp_path: Path, cplusplus: bool) -> None:
    found = job(tmp_path, 3, cast=False, batch=WEIGHTS[0] // 2, cplusplus=cplusplus)
    assert not found.autocast
    assert found.breakdown.of(Owner.COPIES) == 0


def test_autocast_is_advised_by_what_it_really_frees(tmp_path: Path) -> None:
    """Few activations: the copies take more than is halved. Many: products are halved, exponentials stay."""
    assert named(job(tmp_path, 3, cast=False), "autocast") is None
    plain, cast = (job(tmp_path, 3, cast=each, batch=40_000_000) for each in (False, True))
    saving = named(plain, "autocast")
    assert saving.frees == pytest.approx(plain.peak - cast.peak, rel=0.01)
    assert saving.frees < plain.breakdown.of(Owner.ACTIVATIONS) // 4


def test_a_first_step_is_predicted_with_the_state_that_comes_at_its_end(tmp_path: Path) -> None:
    capacity = 1 << 30
    first, steady = (job(tmp_path, steps, capacity, cast=False) for steps in (1, 3))
    assert first.fit is not None
    assert steady.fit is not None
    assert first.fit.least == first.fit.most == pytest.approx(steady.fit.least)
    assert "the first step allocates last" in first.fit.note
    assert steady.fit.note == ""
    displayed = text_of(MemoryReport("snapshot.pickle", (first,)), answer_of)
    assert f"a batch {first.fit.least:.2g} times as large" in displayed
    assert "With the optimizer's 110 MiB, which the first step allocates last." in displayed.splitlines()


def test_where_no_optimiser_was_seen_a_range_is_reported(tmp_path: Path) -> None:
    allocator = Allocator(segment=1 << 30)
    for size in WEIGHTS:
        allocator.malloc(size, BUILD)
    kept = [allocator.malloc(3_000_000, called(39, "linear")) for _ in WEIGHTS]
    for size, block in zip(WEIGHTS, reversed(kept), strict=True):
        allocator.malloc(size, [frame("", 0, "torch::autograd::Engine::thread_main()")])
        allocator.free(block, [frame("", 0, "torch::autograd::Engine::thread_main()")])
    found = triage_of(allocator, tmp_path, 1 << 30)
    assert found.fit is not None
    assert 0 < found.fit.least < found.fit.most
    assert "0 with plain SGD" in found.fit.note
    small = triage_of(allocator, tmp_path, 1 << 20)
    assert small.fit is not None
    assert (small.fit.least, small.fit.most) == (0.0, 0.0)
    assert "no batch: the memory that does not depend on the batch is larger" in " ".join(fitting(small))


@pytest.mark.parametrize("scratch", [1_000, 40_000_000])
def test_no_saving_is_more_than_the_peak_falls_by(tmp_path: Path, scratch: int) -> None:
    """With 40 MB the optimizer's step is nearly as high as the backward: with half the batch the peak is there."""
    whole, half = (job(tmp_path, 3, cast=False, batch=each, scratch=scratch) for each in (8_000_000, 4_000_000))
    assert named(whole, "micro-batch").frees == pytest.approx(whole.peak - half.peak, abs=100)
    assert all(0 < each.frees <= whole.peak for each in whole.savings if "expandable" not in each.name)


def test_gradients_that_stay_are_gradients_and_can_be_dropped(tmp_path: Path) -> None:
    allocator = Allocator(segment=1 << 30)
    for size in WEIGHTS:
        allocator.malloc(size, BUILD)
    gradients: list[int] = []
    for _ in range(4):
        kept = [allocator.malloc(30_000_000, called(39, "linear")) for _ in WEIGHTS]
        gradients = gradients or [allocator.malloc(size, ENGINE) for size in WEIGHTS]
        for block in kept:
            allocator.free(block, ENGINE)
        allocator.free(allocator.malloc(1_000, STATE), STATE)
    found = triage_of(allocator, tmp_path)
    assert found.breakdown.of(Owner.GRADIENTS) == sum(WEIGHTS)
    assert found.breakdown.of(Owner.KEPT) == 0
    assert named(found, "set_to_none").frees == sum(WEIGHTS)


def cut(folder: Path, events: int) -> MemoryTriage:
    """The last events of a longer history, as a full ring keeps them."""
    allocator = Allocator()
    train(allocator, 100)
    allocator.malloc(123_456, BATCH)  # alive at the end, its event is the last
    allocator.events = allocator.events[-events:]
    return triage_of(allocator, folder)


def test_a_cut_history_is_reported_right_behind_the_answer(tmp_path: Path) -> None:
    found = cut(tmp_path, 1000)
    assert "max_entries was reached" in found.cut
    report = MemoryReport("snapshot.pickle", (found,))
    for displayed in (text_of(report, answer_of), markdown_of(report, answer_of)):
        assert "Cut: the history starts late" in "\n".join(displayed.splitlines()[:4])
    assert "the history starts late" in cut(tmp_path, 1017).cut  # blocks of the optimizer's state tell
    whole = Allocator()
    train(whole, 3)
    assert triage_of(whole, tmp_path).cut == ""


def test_a_history_that_began_late_is_not_cut(tmp_path: Path) -> None:
    allocator = Allocator(recording=False)
    for size in WEIGHTS[:1]:
        allocator.malloc(size, [])
    allocator.recording = True
    train(allocator, 3)
    assert triage_of(allocator, tmp_path).cut == ""


def test_frames_of_c_are_no_lines_of_the_job(tmp_path: Path) -> None:
    allocator = Allocator()
    interpreter = frame("/usr/src/Python-3.12/Objects/methodobject.c", 537, "cfunction_call")
    allocator.malloc(700_000, [*operator("exp"), interpreter, LINE, MODULE, TRAIN])
    (line,) = triage_of(allocator, tmp_path).breakdown.lines
    assert line.source is not None
    assert (line.source.file, line.source.line) == ("/home/me/model.py", 39)


@pytest.mark.parametrize(("name", "on"), [("medium_128_training", False), ("medium_512_training", True)])
def test_autocast_is_seen_in_public_snapshots(shared_data: Path, name: str, on: bool) -> None:
    """169 products: four of attention and three of the gated layer in each of 24 blocks, and the head."""
    history = histories(read_snapshot(shared_data / "snapshots" / f"{name}_memory_snapshot.pickle"))[0]
    found = triage(history)
    assert found.autocast is on
    assert bool(named(found, "autocast")) is False
    copies = [line for line in found.breakdown.lines if line.owner is Owner.COPIES]
    assert sum(line.blocks for line in copies) == (169 if on else 0)
    assert triage(_without_cplusplus(history)).breakdown.of(Owner.COPIES) == found.breakdown.of(Owner.COPIES)


def _without_cplusplus(history: AllocationHistory) -> AllocationHistory:
    """As recorded with Python's frames alone: what differed in C++ only is one stack."""
    numbers: dict[tuple[SourceLine, ...], int] = {}
    renumbered = [NO_STACK]
    for stack in range(len(history.stacks)):
        python = tuple(each for each in history.stacks.of(stack) if each.file.endswith(".py"))
        renumbered.append(numbers.setdefault(python, len(numbers)) if python else NO_STACK)
    frames = tuple(dict.fromkeys(frame for stack in numbers for frame in stack))
    place = {frame: number for number, frame in enumerate(frames)}
    members = [place[frame] for stack in numbers for frame in stack]
    start = np.cumsum([0, *(len(stack) for stack in numbers)])
    table = np.array(renumbered, np.int32)
    lives = replace(history.lives, stack=table[history.lives.stack + 1], ended_by=table[history.lives.ended_by + 1])
    stacks = Stacks(frames, start, np.array(members, np.int32))
    return replace(history, stacks=stacks, lives=lives, stack=table[history.stack + 1])


ATTENTION = frame("/home/me/model.py", 71, "forward")
BY_HAND = frame("/home/me/attention.py", 12, "attend")


def attending(folder: Path, *inner: dict[str, Any], ranks: int = 1, samples: int | None = None) -> MemoryTriage:
    """Three steps of a model that attends: weights of 40 MB and a mask of a quarter of that, next to a product."""
    allocator = Allocator(segment=1 << 30)
    state: list[int] = []
    for size in (*WEIGHTS, NORM):
        allocator.malloc(size, BUILD)
    for _ in range(3):
        kept = [
            allocator.malloc(40_000_000, [*operator("softmax"), *inner, ATTENTION, MODULE, TRAIN]),
            allocator.malloc(20_000_000, [*operator("dropout"), *inner, ATTENTION, MODULE, TRAIN]),
            allocator.malloc(7_000_000, [*operator("bmm"), *inner, ATTENTION, MODULE, TRAIN]),
        ]
        step(allocator, state, cast=False)
        for block in kept:
            allocator.free(block, ENGINE)
    return triage(history_of(allocator, folder), ranks=ranks, samples=samples)


def test_written_out_attention_frees_its_weights_when_it_is_fused(tmp_path: Path) -> None:
    found = named(attending(tmp_path, BY_HAND), "fused attention")
    assert found.frees == pytest.approx(60_000_000, rel=0.01), "the weights, and what is half as large; no product"
    assert found.source == SourceLine("/home/me/attention.py", 12, "attend")


def test_a_softmax_of_no_attention_and_torchs_own_kernel_free_nothing(tmp_path: Path) -> None:
    assert named(attending(tmp_path), "fused attention") is None, "nothing there is named so"
    fused = operator("_scaled_dot_product_flash_attention")
    assert named(attending(tmp_path, *fused, BY_HAND), "fused attention") is None


def test_only_a_job_of_several_ranks_is_told_to_shard_and_one_sample_is_not_halved(tmp_path: Path) -> None:
    assert named(attending(tmp_path), "sharding") is None
    assert named(attending(tmp_path, ranks=2), "sharding") is not None
    ddp = frame("/env/torch/nn/parallel/distributed.py", 1700, "forward")
    assert named(attending(tmp_path, ddp), "sharding") is not None
    assert named(attending(tmp_path), "half the micro-batch") is not None
    assert named(attending(tmp_path, samples=1), "half the micro-batch") is None


def test_the_largest_allocations_are_blocks_that_never_lie_on_one_another(tmp_path: Path) -> None:
    found = attending(tmp_path, BY_HAND)
    assert max(each.size for each in found.blocks) == max(*WEIGHTS, 40_000_000)
    for number, one in enumerate(found.blocks):
        for other in found.blocks[number + 1 :]:
            together = one.start < other.end and other.start < one.end
            apart = one.bottom + one.size <= other.bottom or other.bottom + other.size <= one.bottom
            assert apart or not together
    chart = block_chart(found.blocks, found.device, found.events, "x")
    assert chart is not None
    softmax = next(each for each in chart.blocks if "attention.py:12 attend" in each.words)
    assert softmax.words.startswith("38.1 MiB activations\nattention.py:12 attend\nmodel.py:71 forward")
    assert all(0 <= each.x <= each.x + each.width <= 100.001 and 0 <= each.y <= 100 for each in chart.blocks)
    page = as_page(answer_of(MemoryReport("snapshot.pickle", (found,))))
    assert page.count("<title>") >= len(found.blocks)
    assert "attention.py:12 attend" in page
