"""Steps of traces that mark them in one way or another, or not at all."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from published import trace_of
from traces import Events, Written, annotation, kernel, launch, operator, step, write

from steptime.analysis.trace_steps import find_steps
from steptime.trace.table import EventTable, Trace
from steptime.trace.vendors import ANNOTATION, LOADER, OPTIMIZER_STEP, STEP, ZERO_GRAD, matching


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes events and reads them back."""
    return lambda events: write(events, tmp_path)


def found(trace: Trace) -> list[list[float]]:
    """Microseconds."""
    boundaries: list[list[float]] = (find_steps(trace).boundaries / 1000).tolist()
    return boundaries


def updates(*ends: float, name: str = "SGD") -> Events:
    return [annotation(f"Optimizer.step#{name}.step", end - 10, end) for end in ends]


def test_the_profilers_marks_come_first(written: Written) -> None:
    trace = written([step(0, 100, 1), step(100, 200, 2), *updates(90, 190)])
    assert found(trace) == [[0, 100], [100, 200]]
    assert "ProfilerStep#" in find_steps(trace).how


def test_updates_end_steps_and_one_inside_another_does_not(written: Written) -> None:
    nested = annotation("Optimizer.step#Inner.step", 192, 195)
    assert found(written([*updates(100, 200, 300), nested])) == [[100, 200], [200, 300]]


def test_optimisers_that_take_turns_belong_to_one_step(written: Written) -> None:
    """A network and its adversary; the trace starts between the two."""
    discriminator, generator = updates(150, 350, 550, name="Adam"), updates(100, 300, 500, name="RMSprop")
    assert found(written([*generator, *discriminator, operator("aten::mm", 580, 600)])) == [[150, 350], [350, 550]]


def test_two_optimisers_of_one_name_are_reported_by_the_work_between_them(written: Written) -> None:
    def work(counts: tuple[int, ...]) -> Trace:
        events = []
        for turn, count in enumerate(counts):
            start = 100 * turn + (20 if turn % 2 == 0 else 0)  # a longer way to each second update
            events += [operator("aten::mm", start + each, start + each + 1) for each in range(count)]
            events += updates(start + 60)
        return written(events)

    assert found(work((20, 40, 20, 40, 20, 40, 20))) == [[160, 360], [360, 560]]
    assert len(found(work((20, 21, 20, 21, 20, 21, 20)))) == 6, "a little more now and then is the same work"
    assert len(found(work((20, 40, 30, 50, 20, 10, 25)))) == 6


def test_zero_grad_and_the_loader_start_steps(written: Written) -> None:
    cleared = [annotation("Optimizer.zero_grad#SGD.zero_grad", start, start + 5) for start in (0, 100, 210)]
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    batches = [annotation(loader, start, start + 5) for start in (0, 100, 200, 300)]
    assert found(written(cleared)) == [[0, 100], [100, 210]]
    assert found(written(batches)) == [[0, 100], [100, 200], [200, 300]]


def test_a_range_that_repeats_evenly_starts_steps(written: Written) -> None:
    def trace(starts: tuple[int, ...]) -> Trace:
        inner = [annotation("layer", start + each, start + each + 5) for start in starts for each in (10, 30, 50)]
        outer = [annotation("DistributedDataParallel.forward", start, start + 60) for start in starts]
        return written([*outer, *inner])

    assert found(trace((0, 100, 210, 300))) == [[0, 100], [100, 210], [210, 300]]
    assert "DistributedDataParallel.forward" in find_steps(trace((0, 100, 210, 300))).how
    uneven = find_steps(trace((0, 100, 300, 310)))
    assert len(uneven.boundaries) == 1
    assert "whole trace" in uneven.how


def looped(times: int, *, first: str = "", last: str = "", period: int = 100) -> Events:
    names = ["aten::embedding", *["aten::linear", "aten::relu"] * 4, "aten::sum"] if not first else [
        "aten::linear", "aten::relu", "aten::add", "aten::softmax",
    ]  # fmt: skip
    events: Events = [operator(first, -20, -10)] if first else []
    for turn in range(times):
        events += [
            operator(name, turn * period + 9 * place, turn * period + 9 * place + 8) for place, name in enumerate(names)
        ]
    return [*events, operator(last, times * period, times * period + 10)] if last else events


def test_operators_that_repeat_evenly_are_steps_from_the_one_that_comes_once(written: Written) -> None:
    trace = written(looped(5))
    assert found(trace) == [[0, 100], [100, 200], [200, 300], [300, 400]]
    assert "aten::embedding" in find_steps(trace).how


def test_two_repetitions_are_too_few(written: Written) -> None:
    assert len(found(written(looped(3)))) == 1


def test_layers_of_one_pass_are_no_steps(written: Written) -> None:
    assert len(found(written(looped(6, first="aten::embedding")))) == 1
    assert len(found(written(looped(6, first="aten::linear", last="aten::argmax")))) == 1
    assert len(found(written(looped(6, first="aten::linear", last="aten::relu")))) == 5
    around = annotation("forward", -30, 700)
    assert len(found(written([*looped(6, first="aten::linear", last="aten::relu"), around]))) == 1


def test_kernels_that_repeat_are_steps_by_their_launches(written: Written) -> None:
    kernels = []
    for turn in range(5):
        for place, name in enumerate(("gather", "gemm", "softmax", "gemm")):
            number = 1 + turn * 4 + place
            kernels += [launch(number, turn * 50 + place, turn * 50 + place + 1, 99)]
            kernels += [kernel(number, 300 + turn * 100 + place * 20, 310 + turn * 100 + place * 20, name)]
    trace = written(kernels)
    assert found(trace) == [[0, 50], [50, 100], [100, 150], [150, 200]]
    assert "kernel" in find_steps(trace).how
    device_alone = [event for event in kernels if event["cat"] == "kernel"]
    assert found(written(device_alone)) == [[300 + 100 * turn, 400 + 100 * turn] for turn in range(4)]


def test_kernels_of_one_graph_are_no_steps(written: Written) -> None:
    kernels = [
        kernel(1, 100 * turn + 20 * place, 100 * turn + 20 * place + 10, name)
        for turn in range(5)
        for place, name in enumerate(("gather", "gemm", "softmax"))
    ]
    assert len(found(written([launch(1, -10, -5), *kernels]))) == 1


def test_no_step_reaches_across_two_recordings(written: Written) -> None:
    trace = dataclasses.replace(written(updates(100, 200, 1100, 1200)), windows=((0, 300_000), (1_000_000, 1_300_000)))
    assert found(trace) == [[100, 200], [1100, 1200]]
    unmarked = dataclasses.replace(written([operator("aten::mm", 0, 10)]), windows=((0, 5_000), (5_000, 10_000)))
    assert found(unmarked) == [[0, 5], [5, 10]]


def without(trace: Trace, *patterns: re.Pattern[str]) -> Trace:
    dropped = matching(trace, lambda name: any(pattern.match(name) for pattern in patterns))
    columns = {each.name: getattr(trace.events, each.name)[~dropped] for each in dataclasses.fields(EventTable)}
    return dataclasses.replace(trace, events=EventTable(**columns))


REAL = (
    ("kineto/resnet50_workers0.pt.trace.json.gz", 6),
    ("kineto/resnet50_workers4.pt.trace.json.gz", 6),
    ("hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 5),
    ("hta/negative_queue_length_values_check/rank0.json.gz", 5),
)


@pytest.mark.parametrize(("file", "marked"), REAL)
def test_without_the_marks_real_traces_have_steps_of_the_same_length(shared_data: Path, file: str, marked: int) -> None:
    trace = trace_of(shared_data / file)
    boundaries = find_steps(trace).boundaries
    assert len(boundaries) == marked
    lengths = np.diff(boundaries)
    for patterns in ((STEP,), (STEP, OPTIMIZER_STEP), (STEP, OPTIMIZER_STEP, ZERO_GRAD, LOADER), (ANNOTATION,)):
        other = np.diff(find_steps(without(trace, *patterns)).boundaries)
        assert len(other) == marked - 1, patterns
        assert (other > 0.97 * lengths.min()).all(), patterns
        assert (other < 1.03 * lengths.max()).all(), patterns


@pytest.mark.parametrize(
    "file",
    [
        "tracelens/b200/eager_trace.json.gz",
        "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
        "tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz",
        "hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    ],
)
def test_one_pass_of_many_layers_is_one_step(shared_data: Path, file: str) -> None:
    found = find_steps(trace_of(shared_data / file))
    assert len(found.boundaries) == 1
    assert found.how.startswith("the whole trace counts as one step")
