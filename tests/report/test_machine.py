"""The machine over time: what the launcher saw next to the job, in the page."""

from __future__ import annotations

from dataclasses import replace

from advice.healthy import HEALTHY

from steptime.advice.run_uses import SettingsUse
from steptime.recording.recording import DeviceFacts, DeviceSample, TelemetrySample
from steptime.report.compose import MOST_SAMPLES, machine_over_time
from steptime.report.page import page
from steptime.report.page.over_time import machine_chart
from steptime.report.report import Report

SECOND = 10**9
CASE = replace(HEALTHY, settings=SettingsUse(2, 2, 2))


def samples(count: int, *devices: DeviceSample, pressure: float | None = None) -> list[TelemetrySample]:
    return [TelemetrySample((5 + at) * SECOND, 1.0, 0.5, 1 << 20, pressure, devices=devices) for at in range(count)]


def test_series_are_percent_of_their_own_whole() -> None:
    seen = samples(4, DeviceSample(utilization=97.0, clock_mhz=900, max_clock_mhz=1800))
    found = machine_over_time(seen, (), CASE, 5 * SECOND)
    assert found is not None
    assert found.times == (0, SECOND, 2 * SECOND, 3 * SECOND)
    assert {name: values[0] for name, values in found.series} == {
        "CPUs of the job": 50.0, "CPUs of other programs": 25.0, "GPU utilisation": 97.0, "GPU clock": 50.0,
    }  # fmt: skip


def test_memory_power_and_what_holds_the_gpu_back_are_curves() -> None:
    known = DeviceSample(
        throttle_reasons=0x1, memory_bytes=60, memory_total_bytes=80, power_watts=290.0, power_limit_watts=300.0
    )
    seen = samples(3, known)
    seen += samples(1, replace(known, throttle_reasons=0x44, memory_bytes=80, power_watts=300.0))
    found = machine_over_time(seen, (), CASE, 5 * SECOND)
    assert found is not None
    series = dict(found.series)
    assert series["GPU memory"] == (75.0, 75.0, 75.0, 100.0)
    assert series["GPU power"][-1] == 100.0
    assert series["GPU held back"] == (0.0, 0.0, 0.0, 100.0), "an idle GPU lowers its clock by itself"


def test_the_processs_own_devices_have_a_curve_each_from_when_it_tells_them() -> None:
    own = DeviceFacts(0, "3a-b"), DeviceFacts(1, "5a-b")
    devices = [DeviceSample(f"GPU-{number}a-b", number, utilization=10.0 * number) for number in (2, 3, 5)]
    seen = samples(2) + samples(4, *devices)
    found = machine_over_time(seen, own, CASE, 5 * SECOND)
    assert found is not None
    assert len(found.times) == 4
    busy = {name: values for name, values in found.series if "utilisation" in name}
    assert busy == {"GPU 3 (GPU-3a) utilisation": (30.0,) * 4, "GPU 5 (GPU-5a) utilisation": (50.0,) * 4}
    alone = machine_over_time(seen, own[:1], CASE, 5 * SECOND)
    assert alone is not None
    assert dict(alone.series)["GPU utilisation"] == (30.0,) * 4


def test_a_long_run_has_no_more_points_than_a_plot_has_room_for() -> None:
    found = machine_over_time(samples(10 * MOST_SAMPLES), (), CASE, 0)
    assert found is not None
    assert len(found.times) <= MOST_SAMPLES


def test_without_samples_there_is_no_picture() -> None:
    assert machine_over_time(samples(2), (), CASE, 0) is None
    assert machine_over_time(samples(9), (), replace(HEALTHY, settings=None), 0) is None
    assert machine_chart(None) is None


def test_the_page_shows_the_curves_with_their_means(report: Report) -> None:
    found = machine_over_time(samples(4, pressure=99.0), (), CASE, 5 * SECOND)
    process = replace(report.processes[0], machine_over_time=found)
    displayed = page.render(replace(report, processes=(process,)))
    assert "The machine over time" in displayed
    assert "waiting for a CPU <b>99 %</b>" in displayed
    assert "The machine over time" not in page.render(report)
