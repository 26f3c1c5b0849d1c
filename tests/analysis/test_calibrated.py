"""Who decides the step: the replay on the scale of a step that nobody profiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from analysis.test_what_if import launching, prediction, saved, slow_device, slow_host
from analysis.trace_events import Event, replayed, step, written
from hypothesis import given, strategies as some

from steptime.analysis.what_if.calibrated import BOTH, DEVICE, DEVICE_WORK, HOST, HOST_WORK, Calibration
from steptime.analysis.what_if.what_if import Replay


def calibration(replay: Replay) -> Calibration:
    assert replay.calibration is not None
    return replay.calibration


def ahead_of_the_device(steps: int = 4, kernels: int = 5) -> list[Event]:
    """The host dispatches for 300 µs of a step, and waits for nothing; the device takes 505 µs."""
    events, done = [], 0.0
    for index in range(steps):
        since = index * 300
        events.append(step(since, since + 300, index))
        for at in range(kernels):
            call = since + at * 60
            start = max(call + 37, done + 1)
            events += launching(index * 100 + at + 1, call, 60, start, 100)
            done = start + 100
    return events


def test_the_hosts_work_is_scaled_to_the_steady_step(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", slow_host()), steady=300_000, shortest=290_000)
    found = calibration(replay)
    assert found.scale == pytest.approx(0.6, abs=0.01)
    assert found.error < 0.002
    assert found.decides == HOST
    assert saved(replay, "kernels free") == 0, "they wait for their launches"
    assert saved(replay, "host halved") == pytest.approx(150, abs=2)
    assert saved(replay, "host free") == pytest.approx(300 - 5 * 10 - 4, abs=15)
    assert found.saved_by_kernels(40_000) == 0
    assert sum(spent for _, spent in replay.critical_path) == pytest.approx(300_000, rel=0.002)
    assert (replay.entries.sum(axis=1) == replay.replayed).all()


def test_where_the_device_takes_all_of_the_step_the_host_takes_the_shortest_one(tmp_path: Path) -> None:
    """A host that runs ahead shows its own time until the launch queue is full."""
    replay = replayed(written(tmp_path / "made.json", ahead_of_the_device()), steady=505_000, shortest=150_000)
    found = calibration(replay)
    assert found.scale == pytest.approx(0.5, abs=0.01)
    assert found.decides == DEVICE
    assert saved(replay, "host free") == 0
    assert saved(replay, "kernels halved") == pytest.approx(250, abs=2)
    assert saved(replay, "kernels free") == pytest.approx(505 - 150, abs=12), "then the host decides"
    assert found.saved_by_kernels(100_000) == pytest.approx(100_000, rel=0.02)
    assert found.saved_by_kernels(500_000) == pytest.approx(505_000 - 150_000, rel=0.04)


def test_a_step_that_the_trace_cannot_explain_is_claimed_by_nobody(tmp_path: Path) -> None:
    """Steady steps take longer than profiled ones: the host's work is never made longer than it was seen to be."""
    found = calibration(replayed(written(tmp_path / "made.json", slow_host()), steady=900_000))
    assert (found.scale, found.known, found.decides) == (1.0, False, "")
    assert found.error == pytest.approx(4 / 9, abs=0.01)


def test_a_bare_trace_tells_only_what_holds_without_the_profiler_too(tmp_path: Path) -> None:
    host = calibration(replayed(written(tmp_path / "host.json", slow_host())))
    assert (host.profiled, host.scale, host.decides) == (True, 1.0, HOST)
    # Profiled, the host takes 200 µs and the device 180; at 0.3 of that the device decides.
    events = [
        event
        for index in range(4)
        for event in (
            step(index * 200, index * 200 + 200, index),
            *launching(index + 1, index * 200, 200, index * 200 + 107, 180),
        )
    ]
    near = calibration(replayed(written(tmp_path / "near.json", events)))
    assert near.known
    assert near.decides == ""
    assert near.saved_by_kernels(100_000) > 0, "what is not known is not denied"


def test_waits_make_both_decide(tmp_path: Path) -> None:
    """The host launches for 100 µs, all of it before the device's 505 start to be waited for."""
    replay = replayed(written(tmp_path / "made.json", slow_device()), steady=530_000, shortest=530_000)
    assert calibration(replay).decides == DEVICE
    assert saved(replay, "kernels free") == pytest.approx(prediction(replay, "kernels free").cap / 1000, rel=0.2)


KINDS = (*sorted(DEVICE_WORK), *sorted(HOST_WORK))
paths = some.lists(some.dictionaries(some.sampled_from(KINDS), some.floats(0, 1e6), min_size=1), min_size=1, max_size=5)
factors = some.dictionaries(some.sampled_from(KINDS), some.floats(0, 1))


@given(paths, factors, some.booleans())
def test_less_work_never_saves_less_nor_more_than_the_step(
    made: list[dict[str, float]], changed: dict[str, float], profiled: bool
) -> None:
    step = max(sum(path.values()) for path in made)
    found = Calibration(step, step, 1.0, (("kernel", step),), tuple(tuple(path.items()) for path in made), profiled)
    gained = found.saved(changed)
    assert 0 <= gained <= step
    assert found.saved({kind: factor / 2 for kind, factor in changed.items()}) >= gained - 1e-6 * step
    assert found.saved({}) == 0
    assert found.decides in (HOST, DEVICE, BOTH, "")
    assert found.on(2 * step).saved(changed) == pytest.approx(2 * gained, abs=1e-6 * step)
