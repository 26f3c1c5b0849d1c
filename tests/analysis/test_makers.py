"""The same categories on devices of other makers, on several devices and on several streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from traces import MAIN, Event, Written, called, happened, kernel, launch, operator, step, write

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Category
from steptime.analysis.idle import gap_totals, gaps_of
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.trace.table import Trace


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes events and reads them back."""
    return lambda events: write(events, tmp_path)


def categories(trace: Trace) -> dict[str, float]:
    """Microseconds by category; categories without time left out."""
    spent = breakdown_of(step_context(trace, steps_of(trace))).entries.sum(axis=0)
    return {category.name.lower(): spent[category] / 1000 for category in Category if spent[category]}


def waits(trace: Trace) -> list[tuple[str, float]]:
    """Cause and microseconds."""
    steps = step_context(trace, steps_of(trace))
    totals = gap_totals(steps, gaps_of(steps))
    return [(each.cause, each.duration.sum() / 1000) for each in totals if each.category is Category.SYNC]


def test_hips_names_for_launches_copies_and_waits(written: Written) -> None:
    """A synchronous copy drains the device, a launch by another call follows, streams are written as text."""
    place = {"device": 0, "stream": "0x0"}
    events = [
        step(0, 1000),
        called("hipExtModuleLaunchKernel", 0, 5, 1),
        happened("kernel", "Cijk_Ailk", 10, 100, (0, 0), correlation=1, **place),
        operator("aten::_local_scalar_dense", 40, 210),
        called("hipMemcpyWithStream", 50, 200, 2),
        happened("gpu_memcpy", "Memcpy DtoH (Device -> Host)", 110, 120, (0, 0), correlation=2, bytes="8", **place),
        called("hipLaunchKernel", 880, 885, 3),
        happened("kernel", "igemm_fwd", 890, 1000, (0, 0), correlation=3, **place),
    ]
    trace = written(events)
    assert categories(trace) == {"compute": 200, "copy": 10, "sync": 10 + 760, "overhead": 10 + 10}
    assert waits(trace) == [("aten::_local_scalar_dense", 770)]


def test_devices_that_name_their_own_runtime(written: Written) -> None:
    """MTIA-like: mtia_runtime calls; what its device executed says so by where it ran."""
    place = {"device": 0, "stream": 3}
    events = [
        step(0, 1000),
        happened("mtia_runtime", "mtiaLaunchKernel", 0, 5, (1, MAIN), correlation=1),
        happened("mtia_ccp_events", "fused_linear", 10, 400, (0, 3), correlation=1, **place),
        happened("mtia_runtime", "mtiaStreamSynchronize", 20, 410, (1, MAIN), correlation=9),
        happened("mtia_runtime", "mtiaLaunchKernel", 700, 705, (1, MAIN), correlation=2),
        happened("mtia_ccp_events", "memcpy_to_device", 710, 800, (0, 3), correlation=2, **place),
        happened("mtia_runtime", "mtiaLaunchKernel", 800, 805, (1, MAIN), correlation=3),
        happened("mtia_ccp_events", "fused_relu", 810, 1000, (0, 3), correlation=3, **place),
    ]
    trace = written(events)
    assert categories(trace) == {"compute": 580, "copy": 90, "sync": 300, "overhead": 10 + 10 + 10}
    assert waits(trace)[0] == ("mtiaStreamSynchronize", 300)


def test_several_devices_of_a_process_idle_only_together(written: Written) -> None:
    kernels = [launch(1, 0, 5), kernel(1, 5, 400, device=0), launch(2, 10, 15), kernel(2, 300, 600, device=1)]
    late = [operator("aten::mm", 600, 800), launch(3, 700, 705), kernel(3, 705, 1000, stream=9)]
    assert categories(written([step(0, 1000), *kernels, *late])) == {"compute": 595 + 295, "overhead": 5 + 105}


def test_overlapping_streams_count_once(written: Written) -> None:
    both = [launch(1, 0, 5), kernel(1, 5, 600, stream=7), launch(2, 10, 15), kernel(2, 100, 1000, stream=20)]
    assert categories(written([step(0, 1000), *both])) == {"compute": 995, "overhead": 5}


def test_two_threads_that_launch_explain_their_own_gaps(written: Written) -> None:
    """Another trainer of the process: its operators say nothing of the gaps that the first one ends."""
    first = [launch(1, 0, 5), kernel(1, 10, 100), operator("aten::mm", 100, 300), launch(2, 290, 295)]
    second: list[Event] = [operator("aten::add", 400, 700, 77), launch(3, 690, 695, 77)]
    trace = written([step(0, 1000), *first, *second, kernel(2, 300, 400), kernel(3, 700, 1000)])
    found = breakdown_of(step_context(trace, steps_of(trace))).entries.sum(axis=0)
    assert found[Category.COMPUTE] == (90 + 100 + 300) * 1000
    assert found[Category.OVERHEAD] == (10 + 200 + 300) * 1000
    assert found.sum() == 1_000_000


def test_copies_alone_are_no_device_that_computes(written: Written) -> None:
    """Without a kernel the categories are the processor's."""
    place = {"device": 0, "stream": 7, "bytes": 5}
    moved = happened("gpu_memcpy", "Memcpy HtoD", 10, 20, (0, 7), correlation=1, **place)
    trace = written([step(0, 100), moved, operator("aten::mm", 0, 100)])
    breakdown = breakdown_of(step_context(trace, steps_of(trace)))
    assert breakdown.device == "cpu"
    assert np.array_equal(breakdown.entries.sum(axis=1), breakdown.wall)
