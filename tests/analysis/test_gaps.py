"""Idle time of the device by its reason and its cause."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from published import IN_A_CLONE, trace_of
from traces import (
    ENGINE,
    Event,
    Events,
    Written,
    annotation,
    called,
    copy,
    kernel,
    launch,
    operator,
    python,
    step,
    write,
)

from steptime.analysis import idle
from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Category
from steptime.analysis.device_activity import has_kernels
from steptime.analysis.idle import GapTotal, IdleGaps, gap_totals, gaps_of, pieces_of
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.intervals import union
from steptime.trace.reader import read
from steptime.trace.table import Trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes events and reads them back."""
    return lambda events: write(events, tmp_path)


def looked_at(trace: Trace) -> tuple[IdleGaps, tuple[GapTotal, ...]]:
    steps = step_context(trace, steps_of(trace))
    gaps = gaps_of(steps)
    return gaps, gap_totals(steps, gaps)


def called_while(trace: Trace, gaps: IdleGaps) -> set[str]:
    """The calls that waited while the device idled."""
    return {trace.symbols[trace.events.name[row]] for row in gaps.wait[gaps.category == Category.SYNC].tolist()}


def causes(trace: Trace) -> dict[tuple[str, str], float]:
    """Microseconds by category and cause."""
    return {(each.category.name, each.cause): each.duration.sum() / 1000 for each in looked_at(trace)[1]}


def training(*events: Event) -> Events:
    """A step of 1 ms with a first kernel at once and a last one at its end; in between the device idles."""
    first = [launch(1, 0, 5), kernel(1, 10, 100)]
    last = [launch(2, 880, 885), kernel(2, 890, 1000)]
    return [step(0, 1000), *first, *last, *events]


def test_the_loader_is_the_cause_of_input(written: Written) -> None:
    inside = [operator("aten::stack", 300, 500), python("data.py(7): __getitem__", 250, 700)]
    trace = written(training(python("train.py(2): main", 0, 990), annotation(LOADER, 120, 800), *inside))
    assert causes(trace)[("INPUT", LOADER)] == 680
    gaps, totals = looked_at(trace)
    (waited,) = (each for each in totals if each.category is Category.INPUT)
    assert waited.source is not None
    assert waited.source.function == "__getitem__", "what to change is what the loader was at, not the loop around it"
    (row,) = gaps.inside[gaps.category == Category.INPUT]
    assert trace.symbols[trace.events.name[row]] == waited.inside == "data.py(7): __getitem__"


def test_a_wait_is_not_blamed_for_what_the_host_does_when_there_is_nothing_more_to_launch(written: Written) -> None:
    first = [launch(1, 0, 5), kernel(1, 10, 100), called("cudaDeviceSynchronize", 20, 110)]
    trace = written([*first, called("cudaFree", 990, 1000)])
    assert causes(trace)[("SYNC", "cudaDeviceSynchronize")] == 10  # until it returns


def test_what_was_launched_long_before_it_began_waits_for_work_that_was_not_recorded(written: Written) -> None:
    """Neither the host, which was done, nor the copy in which it waits later is to blame."""
    host = [operator("aten::copy_", 20, 890), called("cudaMemcpyAsync", 21, 889)]
    late = [launch(1, 10, 15), kernel(1, 800, 1000)]
    gaps, totals = looked_at(written([step(0, 1000), *host, *late]))
    assert [(each.category.name, int(each.duration.sum())) for each in totals] == [
        ("UNRECORDED", 785_000), ("PYTHON", 10_000), ("OVERHEAD", 5_000)
    ]  # fmt: skip
    assert len(gaps) == 3


def test_a_launch_that_takes_its_time_is_the_hosts_own(written: Written) -> None:
    """A module is loaded in it, or the queue is full: the device cannot start before it returns."""
    slow = [launch(1, 0, 780), kernel(1, 800, 1000)]
    assert causes(written([step(0, 1000), *slow]))[("OVERHEAD", "cudaLaunchKernel")] == 800


def test_python_is_reported_by_function_with_all_that_it_calls(written: Written) -> None:
    """The innermost frame that held the thread longest is no cause: its caller's other calls took more."""
    calls = [python("app.py(9): prepare", 110, 870), python("video.py(3): read", 120, 260)]
    resized = [python(f"image.py({at}): part{at}", 300 + 90 * at, 380 + 90 * at) for at in range(6)]
    trace = written(training(python("train.py(2): main", 0, 990), *calls, *resized))
    (total,) = (each for each in looked_at(trace)[1] if each.category is Category.PYTHON)
    assert total.cause == "app.py(9): prepare"
    assert dict(total.functions) == {"app.py(9): prepare": 760_000, "video.py(3): read": 140_000} | {
        f"image.py({at}): part{at}": 80_000 for at in range(6)
    }


def test_a_drain_is_caused_by_the_outermost_operator_around_the_wait(written: Written) -> None:
    around = [operator("aten::item", 60, 130), operator("aten::_local_scalar_dense", 61, 129)]
    trace = written(training(python("train.py(3): train", 0, 990), *around, called("cudaStreamSynchronize", 70, 120)))
    gaps, totals = looked_at(trace)
    (sync,) = (each for each in totals if each.category is Category.SYNC)
    assert (sync.cause, sync.duration.tolist(), sync.count.tolist()) == ("aten::item", [780_000], [1])
    assert called_while(trace, gaps) == {"cudaStreamSynchronize"}
    assert sync.source is not None
    assert (sync.source.file, sync.source.line) == ("train.py", 3)


def test_waits_of_one_operator_are_reported_apart_by_their_lines(written: Written) -> None:
    def read_back(start: float, line: str, number: int) -> Events:
        stack = [python(line, start, start + 150), operator("aten::item", start + 1, start + 140)]
        wait = called("cudaStreamSynchronize", start + 2, start + 110)
        return [*stack, wait, launch(number, start + 160, start + 165), kernel(number, start + 170, start + 300)]

    first, second = read_back(10, "train.py(3): loss", 2), read_back(310, "metrics.py(9): accuracy", 3)
    trace = written([step(0, 700), launch(1, 0, 5), kernel(1, 5, 100), *first, *second])
    syncs = [each for each in looked_at(trace)[1] if each.category is Category.SYNC]
    assert {(each.cause, each.source.function if each.source else "") for each in syncs} == {
        ("aten::item", "loss"),
        ("aten::item", "accuracy"),
    }


def test_a_blocking_copy_that_outlasts_the_queue_is_a_wait(written: Written) -> None:
    """The device runs dry while the copy holds the host; the activity that ends the interval was queued before."""
    blocking = [operator("aten::to", 50, 720), called("cudaMemcpyAsync", 60, 700, 3), copy(3, 690, 700)]
    trace = written(training(*blocking))
    gaps, totals = looked_at(trace)
    (sync,) = (each for each in totals if each.category is Category.SYNC)
    assert (sync.cause, sync.duration.tolist()) == ("aten::to", [590_000])
    assert called_while(trace, gaps) == {"cudaMemcpyAsync"}
    assert gaps.duration.sum() == 1_000_000 - 200_000 - 10_000


def test_launching_is_caused_by_the_operator_that_took_most_of_it(written: Written) -> None:
    operators = [
        operator("aten::linear", 100, 600),
        operator("aten::add", 600, 880),
        called("cudaEventQuery", 700, 710),
    ]
    found = causes(written(training(*operators)))
    assert found == {("OVERHEAD", "aten::linear"): 790, ("OVERHEAD", "cudaLaunchKernel"): 10}


def test_a_call_that_allocates_is_a_cause_of_its_own(written: Written) -> None:
    found = causes(written(training(operator("aten::empty", 100, 880), called("hipFree", 110, 870))))
    assert found[("OVERHEAD", "hipFree")] == 790


def test_python_is_the_cause_of_host_time_with_its_line(written: Written) -> None:
    stack = [python("train.py(3): log", 100, 870), python("<built-in method sleep>", 150, 860)]
    _, totals = looked_at(written(training(*stack)))
    (host,) = (each for each in totals if each.category is Category.PYTHON)
    assert host.cause == "<built-in method sleep>"
    assert host.source is not None
    assert host.source.function == "log"


def categories(trace: Trace) -> dict[str, float]:
    """Microseconds of idle time by category."""
    found: dict[str, float] = {}
    for (category, _), spent in causes(trace).items():
        found[category] = found.get(category, 0) + spent
    return found


def test_a_thread_of_which_only_marks_were_recorded_is_not_blamed(written: Written) -> None:
    """A part cut out of a trace: another thread's few events, and the mark of a step on a thread that says no more."""
    other = [operator("aten::mm", 0, 20, 7), kernel(1, 30, 100)]
    found = categories(written([step(0, 1000), annotation("## forward ##", 20, 900), *other, kernel(2, 990, 1000)]))
    assert found == {"OVERHEAD": 30, "UNEXPLAINED": 890}


def test_an_operator_of_autograd_says_nothing_of_the_training_thread(written: Written) -> None:
    engine = [operator("XBackward0", 500, 900, ENGINE), kernel(1, 910, 1000)]
    found = categories(written([step(0, 1000), *engine]))
    assert found["UNEXPLAINED"] >= 500
    assert "PYTHON" not in found


def test_where_stacks_were_recorded_time_outside_of_every_function_is_not_python(written: Written) -> None:
    found = categories(written(training(python("train.py(3): log", 300, 500))))
    assert found["PYTHON"] == 200
    assert found["UNEXPLAINED"] == 880 - 100 - 200


def test_autograd_explains_what_the_training_thread_ends(written: Written) -> None:
    stack = python("torch/autograd/graph.py(1): _engine_run_backward", 50, 870)
    found = causes(
        written(training(stack, operator("aten::mm", 90, 860, ENGINE), operator("XBackward0", 89, 861, ENGINE)))
    )
    assert found == {("OVERHEAD", "aten::mm"): 790, ("OVERHEAD", "cudaLaunchKernel"): 10}


def test_who_waits_for_an_idle_device_waits_for_work_that_was_not_recorded(written: Written) -> None:
    """A synchronisation of an idle device returns at once; one of a device whose queue was just emptied does not."""
    lost = [step(0, 9000), called("cudaDeviceSynchronize", 100, 6100), launch(1, 8000, 8005), kernel(1, 8010, 9000)]
    assert {each[0]: spent for each, spent in causes(written(lost)).items()}["UNRECORDED"] == 6000
    held = [launch(2, 10, 15), kernel(2, 20, 5000), called("cudaDeviceSynchronize", 100, 6100)]
    drained = written([step(0, 9000), *held, launch(1, 8000, 8005), kernel(1, 8010, 9000)])
    assert not any(category == "UNRECORDED" for category, _ in causes(drained))


def test_pieces_are_numbered_by_step_and_by_the_stretch_that_they_are_of(written: Written) -> None:
    first = [step(0, 100, 1), launch(1, 0, 5), kernel(1, 5, 50)]
    second = [step(100, 200, 2), annotation(LOADER, 100, 150), launch(2, 180, 185), kernel(2, 185, 200)]
    gaps, _ = looked_at(written([*first, *second]))
    assert gaps.step.tolist() == [0, 0, 1, 1, 1]
    assert [Category(each).name for each in gaps.category] == ["OVERHEAD", "PYTHON", "INPUT", "PYTHON", "OVERHEAD"]
    assert not gaps.cause.flags.writeable


@pytest.mark.slow
def test_gaps_of_real_traces_sum_to_the_breakdown_of_each_step(shared_data: Path) -> None:
    seen = 0
    for path in sorted(shared_data.rglob("*.json*")):
        if "_et" in str(path) or "expected" in path.name or path.stat().st_size > 3_000_000:
            continue
        trace = read(path)
        if not has_kernels(trace):
            continue
        boundaries = steps_of(trace)
        breakdown, (gaps, totals) = breakdown_of(step_context(trace, boundaries)), looked_at(trace)
        found = np.zeros_like(breakdown.entries)
        np.add.at(found, (gaps.step, gaps.category), gaps.duration)
        assert (found[:, Category.UNRECORDED :] == breakdown.entries[:, Category.UNRECORDED :]).all(), path
        summed = np.zeros_like(breakdown.entries)
        for each in totals:
            summed[:, each.category] += each.duration
        assert (summed == found).all(), path
        seen += 1
    assert seen >= (9 if IN_A_CLONE else 20)


def test_a_job_without_a_memory_pool_idles_in_the_drivers_allocator(shared_data: Path) -> None:
    """TraceLens' classifier of idle time must find MEMORY_ALLOC there; expected.json."""
    totals = looked_at(trace_of(shared_data / "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz"))[1]
    idle = sum(int(each.duration.sum()) for each in totals)
    assert totals[0].cause == "hipFree"
    assert int(totals[0].duration.sum()) > 0.9 * idle


def test_graphs_of_which_a_real_trace_holds_one_node_are_work_that_it_does_not_hold(shared_data: Path) -> None:
    """Of a graph only a memset at its end was recorded, 63 to 65 ms after the launch returned, with nothing before it
    on any stream, while the host had long gone on or waits in cudaDeviceSynchronize."""
    trace = trace_of(shared_data / "hta/negative_queue_length_values_check/rank0.json.gz")
    gaps, totals = looked_at(trace)
    lost = next(each for each in totals if each.category is Category.UNRECORDED)
    assert (lost.duration > 120_000_000).all()
    unrecorded = gaps.category == Category.UNRECORDED
    longest = gaps.launch[unrecorded][np.argsort(-gaps.duration[unrecorded])[:5]]
    assert {trace.symbols[trace.events.name[row]] for row in longest.tolist()} == {"cudaGraphLaunch"}
    waited = {each.cause: each.duration for each in totals if each.category is Category.SYNC}
    assert waited["aten::to"].sum() < 0.2 * lost.duration.sum()


Sides = list[tuple[int, int]]
SIDES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8)


@given(SIDES, SIDES, SIDES, st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True), st.integers(1, 3))
def test_pieces_are_the_same_however_many_steps_are_cut_at_once(
    busy: Sides, first: Sides, second: Sides, ends: list[int], piece: int
) -> None:
    times = np.array(sorted(ends), np.int64)
    windows = np.stack((times[:-1], times[1:]), axis=1)[:: 1 + len(ends) % 2]
    sets = [union([b for b, _ in each], [b + length for b, length in each]) for each in (busy, first, second)]
    claims = ((Category.INPUT, sets[1]), (Category.PYTHON, sets[2]))
    whole = [column.tolist() for column in pieces_of(windows, sets[0], claims)]
    with mock.patch.object(idle, "PIECE", piece):
        assert [column.tolist() for column in pieces_of(windows, sets[0], claims)] == whole
