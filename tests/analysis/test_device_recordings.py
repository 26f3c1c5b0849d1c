"""Recordings of real jobs on an H100 and an H200, in tests/data/gpu: what is told of them is what the devices did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device_recordings import diagnosed

from steptime.advice.propose import propose
from steptime.advice.verdict import verdict
from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.recorded_breakdown import ON_DEVICE, breakdown_of_process
from steptime.analysis.tracer import slowed_by_tracer, starts_with_tracer, without_tracer
from steptime.analysis.what_if.calibrated import DEVICE, HOST, HOST_WORK
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
    reported = recorded.breakdown.entries[usual][:, ON_DEVICE].sum(axis=1).mean()
    assert reported == pytest.approx(min(profiled, wall[usual].mean()), rel=0.02)
    assert (recorded.breakdown.entries.sum(axis=1) == wall).all()


@pytest.mark.parametrize(
    ("job", "compute", "first"),
    [
        ("ddp", 0.96, "ST403"),  # the device is never idle: the profiler made the host slower than it
        ("streams", 0.95, "ST403"),
        ("gpt", 1.0, "ST403"),
        ("dense_device_bound", 1.0, "ST403"),
        ("resnet_float32", 0.99, "ST413"),
        ("nanogpt", 0.61, "ST108"),  # it prepares its batches itself
        ("dense", 0.81, "ST302"),  # no kernel's time shortens a step that the host decides
        ("graphs", 0.45, "ST302"),
        ("amp", 0.43, "ST302"),
        ("chargpt", 0.37, "ST302"),  # 532 kernels per step, fed by four workers
    ],
)
def test_what_is_reported_of_each(job: str, compute: float, first: str) -> None:
    case, findings = diagnosed(job)
    categories = {use.name: use.duration.value / case.step.duration.value for use in case.categories}
    assert categories["compute"] == pytest.approx(compute, abs=0.02)
    assert findings[0].code == first, [finding.summary for finding in findings]
    for gap in case.gaps:
        assert gap.duration.value <= categories[gap.category] * case.step.duration.value * 1.001
    wholes = {use.name: use.duration.value for use in case.categories}
    for finding in findings:
        if finding.savings is not None and finding.category in wholes:
            assert finding.savings.value <= 1.001 * wholes[finding.category], finding.summary


@pytest.mark.parametrize(
    ("job", "decides", "kernels_free", "host_halved"),
    [  # ms per step, by hand: the host's edges scaled by bisection until the replay takes the steady step
        ("chargpt", HOST, 0.0, 12.45),
        ("nanogpt", HOST, 0.0, 4.15),
        ("dense", HOST, 0.0, 0.715),
        ("amp", HOST, 0.075, 1.675),
        ("graphs", HOST, 0.0, 1.363),
        ("ddp", DEVICE, 0.95, 0.0),  # of 2.84: then the host takes 1.9
        ("streams", DEVICE, 0.84, 0.0),
        ("gpt", DEVICE, 24.3, 0.0),
        ("dense_device_bound", DEVICE, 14.6, 0.0),
        ("resnet_float32", DEVICE, 38.0, 0.0),
    ],
)
def test_who_decides_the_step(job: str, decides: str, kernels_free: float, host_halved: float) -> None:
    case, findings = diagnosed(job)
    assert case.replay is not None
    found = case.replay.calibration
    assert found is not None
    assert found.known
    assert found.decides == decides
    saved = {each.change: each.saved.value / 1e6 for each in case.replay.predictions}
    step = case.step.duration.value / 1e6
    assert saved["kernels free"] == pytest.approx(kernels_free, abs=0.02 * step)
    assert saved["host halved"] == pytest.approx(host_halved, abs=0.02 * step)
    for kind in ("kernel", "host"):  # what is read off the paths is what the replay of the change gives
        kinds = {"kernel"} if kind == "kernel" else HOST_WORK
        read = found.saved(dict.fromkeys(kinds, 0.0)) / 1e6
        assert read == pytest.approx(saved["kernels free" if kind == "kernel" else "host free"], abs=0.08 * step)
    message = verdict(case, findings)
    assert message.decides == decides
    bound = "Host-bound: kernels run " in message.sentence  # behind what the run lost to compiling, where that is more
    assert bound == (decides == HOST), message.sentence
    assert bound or "The GPU limits the step: a faster CPU would save" in message.sentence
    on_device = [each for each in findings if each.category == "compute" and each.savings is not None]
    assert not bound or not on_device, "kernels that wait for launches save nothing"
    assert sum(use.duration.value for use in case.categories) == pytest.approx(1e6 * step, rel=1e-6)
    assert message.bottleneck != "compute" if decides == HOST else message.bottleneck == "compute"


@pytest.mark.parametrize(
    ("job", "code", "fix", "saved"),
    [  # ms per step that it was measured to save, in blocks ABBA of one process on the same H200 (torch 2.11)
        ("gpt", "ST403", "RM302", 18.33),
        ("dense_device_bound", "ST403", "RM302", 13.03),
        ("resnet_float32", "ST413", "RM301", 5.36),
    ],
)
def test_what_precision_was_measured_to_save_is_inside_of_what_is_reported(
    job: str, code: str, fix: str, saved: float
) -> None:
    case, findings = diagnosed(job)
    saving = next(each.savings for each in findings if each.code == code)
    assert saving is not None
    assert saved <= saving.value / 1e6, "up to"
    (proposal,) = [each for each in propose(case, findings) if each.fix.code == fix]
    predicted = proposal.option.saving
    assert predicted is not None
    assert predicted.low / 1e6 <= saved <= predicted.high / 1e6
    assert predicted.value / 1e6 == pytest.approx(saved, rel=0.25)


def test_bfloat16_with_channels_last_is_within_what_is_reported_of_images() -> None:
    """The step took 60.5 ms, and 29.7 with both and a fused optimizer, which saves 0.57."""
    _, findings = diagnosed("resnet_float32")
    saving = next(each.savings for each in findings if each.code == "ST413")
    assert saving is not None
    assert saving.low < 30.3e6 <= saving.value


@pytest.mark.parametrize(("job", "measured"), [("gpt", 0.29), ("dense_device_bound", 0.53), ("resnet_float32", 0.57)])
def test_an_optimizer_on_a_device_takes_what_its_kernels_take(job: str, measured: float) -> None:
    """measured: ms per step that a fused one was measured to save; timed on the host it waits for the device."""
    case, findings = diagnosed(job)
    (use,) = case.optimizers
    assert use.kernels
    assert measured < use.duration.value / 1e6 < 2.2 * measured
    assert not {"ST501", "ST503"} & {each.code for each in findings}
    (whole,) = load(DATA / job).processes
    assert use.duration.value < case.step.duration.value
    assert whole.facts.device == "cuda"


def test_the_host_of_a_host_bound_job_keeps_its_optimizers_time() -> None:
    case, _ = diagnosed("chargpt")
    (use,) = case.optimizers
    assert use.kernels is None
    assert use.duration.value == pytest.approx(2.18e6, rel=0.05)


def test_what_a_host_keeps_from_saving_anything_is_not_tried() -> None:
    for job in ("chargpt", "dense", "nanogpt"):
        case, findings = diagnosed(job)
        tried = {each.fix.code for each in propose(case, findings) if not each.advice_only}
        assert "RM303" in tried, "fewer launches make the host faster"
        assert not tried & {"RM301", "RM302", "RM304"}, job


def test_compiling_takes_the_longer_of_host_and_device() -> None:
    """Of chargpt the device needs 10.2 of 25.0 ms: no compilation promises a shorter step than its kernels."""
    case, findings = diagnosed("chargpt")
    saving = next(each.option.saving for each in propose(case, findings) if each.fix.code == "RM303")
    assert saving is not None
    kernels = next(use.duration.value for use in case.categories if use.name == "compute")
    assert 0 < saving.value < saving.high <= case.step.duration.value - 0.9 * kernels


def test_steps_behind_the_profiler_are_left_out_where_its_tracer_slows_them() -> None:
    (process,) = load(DATA / "dense").processes
    layout = lay_out_whole(process)
    steady = np.flatnonzero(layout.timeline.steps.steady)
    longer = slowed_by_tracer(layout, steady)
    assert longer is not None
    assert longer.value == pytest.approx(1.7e6, rel=0.1)
    kept = without_tracer(layout, steady)
    assert layout.traced is not None
    assert (layout.timeline.steps.start[kept] < layout.traced).all()
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


def test_a_change_that_starts_with_the_tracer_is_not_the_jobs() -> None:
    (process,) = load(DATA / "dense").processes
    layout = lay_out_whole(process)
    steps = layout.timeline.steps
    assert layout.traced is not None
    behind = np.flatnonzero(steps.steady & (steps.start >= layout.traced))
    assert starts_with_tracer(layout, int(behind[0]))
    assert not starts_with_tracer(layout, int(behind[50]))
    assert not starts_with_tracer(layout, int(behind[0]) - 60)
    assert not starts_with_tracer(replace(layout, traced=None), int(behind[0]))


def test_a_cost_is_of_the_steps_that_the_mean_is_of() -> None:
    (process,) = load(DATA / "dense").processes
    layout = lay_out_whole(process)
    steps = layout.timeline.steps
    longer = slowed_by_tracer(layout, np.flatnonzero(steps.steady))
    assert cost_of(process, steps, tracer=longer).span_ns == pytest.approx(4.29e6, rel=0.02)
