"""Recordings of real jobs on an H100 and an H200, in tests/data/gpu: what is told of them is what the devices did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.recorded_breakdown import ON_DEVICE, breakdown_of_process
from steptime.analysis.tracer import begins_with_tracer, slowed_by_tracer, without_tracer
from steptime.cli.trial import case_and_findings
from steptime.recording.load import load
from steptime.report.compose import cost_of

DATA = Path(__file__).resolve().parents[1] / "data" / "gpu"
JOBS = sorted(each.name for each in DATA.iterdir() if each.is_dir())


@pytest.mark.parametrize("job", JOBS)
def test_the_device_works_as_long_in_a_steady_step_as_in_a_profiled_one(job: str) -> None:
    (process,) = load(DATA / job).processes
    layout = lay_out_whole(process)
    recorded = breakdown_of_process(process, layout)
    assert recorded.profiled is not None
    profiled = breakdown_of(recorded.profiled).entries[:, ON_DEVICE].sum(axis=1).mean()
    wall, steps = recorded.breakdown.wall, layout.timeline.steps
    steady = np.flatnonzero(steps.steady)
    usual = np.isin(steady, without_tracer(layout, steady[wall <= 2 * np.median(wall)]))
    told = recorded.breakdown.entries[usual][:, ON_DEVICE].sum(axis=1).mean()
    assert told == pytest.approx(min(profiled, wall[usual].mean()), rel=0.02)
    assert (recorded.breakdown.entries.sum(axis=1) == wall).all()


@pytest.mark.parametrize(
    ("job", "compute", "first"),
    [
        ("ddp", 0.96, "ST403"),  # the device is never idle: the profiler made the host slower than it
        ("streams", 0.95, "ST403"),
        ("nanogpt", 0.61, "ST108"),  # it prepares its batches itself
        ("dense", 0.81, "ST413"),
        ("graphs", 0.45, "ST302"),
        ("amp", 0.43, "ST302"),
        ("chargpt", 0.37, "ST302"),  # 532 kernels a step, fed by four workers
    ],
)
def test_what_is_told_of_each(job: str, compute: float, first: str) -> None:
    case, findings = case_and_findings(DATA / job)
    categories = {use.name: use.duration.value / case.step.duration.value for use in case.categories}
    assert categories["compute"] == pytest.approx(compute, abs=0.02)
    assert findings[0].code == first, [finding.summary for finding in findings]
    for gap in case.gaps:
        assert gap.duration.value <= categories[gap.category] * case.step.duration.value * 1.001
    wholes = {use.name: use.duration.value for use in case.categories}
    for finding in findings:
        if finding.savings is not None and finding.category in wholes:
            assert finding.savings.value <= 1.001 * wholes[finding.category], finding.summary


def test_products_as_tf32_are_told_to_be_faster_in_bfloat16() -> None:
    _, findings = case_and_findings(DATA / "dense")
    assert "ST413" in {finding.code for finding in findings}


def test_steps_behind_the_profiler_are_left_out_where_its_tracer_slows_them() -> None:
    (process,) = load(DATA / "dense").processes
    layout = lay_out_whole(process)
    steady = np.flatnonzero(layout.timeline.steps.steady)
    longer = slowed_by_tracer(layout, steady)
    assert longer is not None
    assert longer.value == pytest.approx(1.7e6, rel=0.1)
    kept = without_tracer(layout, steady)
    assert layout.traced is not None
    assert (layout.timeline.steps.begin[kept] < layout.traced).all()
    assert len(kept) == 58
    on_a_cpu = replace(layout, traced=None)
    assert slowed_by_tracer(on_a_cpu, steady) is None
    assert without_tracer(on_a_cpu, steady) is steady
    assert slowed_by_tracer(layout, steady[-80:]) is None, "none before it is left to compare with"


def test_steps_behind_the_profiler_count_where_they_are_no_longer() -> None:
    (process,) = load(DATA / "amp").processes
    layout = lay_out_whole(process)
    steady = np.flatnonzero(layout.timeline.steps.steady)
    assert layout.traced is not None
    assert len(without_tracer(layout, steady)) == len(steady)


def test_a_change_that_begins_with_the_tracer_is_not_the_jobs() -> None:
    (process,) = load(DATA / "dense").processes
    layout = lay_out_whole(process)
    steps = layout.timeline.steps
    assert layout.traced is not None
    behind = np.flatnonzero(steps.steady & (steps.begin >= layout.traced))
    assert begins_with_tracer(layout, int(behind[0]))
    assert not begins_with_tracer(layout, int(behind[50]))
    assert not begins_with_tracer(layout, int(behind[0]) - 60)
    assert not begins_with_tracer(replace(layout, traced=None), int(behind[0]))


def test_a_cost_is_of_the_steps_that_the_mean_is_of() -> None:
    (process,) = load(DATA / "dense").processes
    layout = lay_out_whole(process)
    steps = layout.timeline.steps
    longer = slowed_by_tracer(layout, np.flatnonzero(steps.steady))
    assert cost_of(process, steps, tracer=longer).span_ns == pytest.approx(4.29e6, rel=0.02)
