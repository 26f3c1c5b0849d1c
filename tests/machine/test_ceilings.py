"""Peaks: measured once with the user's interpreter, remembered, and never fatal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from machine.interpreters import interpreter
from patience import PATIENCE
from preloading import python

from steptime.errors import SteptimeError
from steptime.machine import peaks
from steptime.machine.environment import describe
from steptime.machine.machine import Machine, Rate
from steptime.quantities import Estimate

RATE = {"value": 2.0, "low": 1.5, "high": 2.0, "samples": 9}
COST = {"value": 1e3, "low": 1e3, "high": 2e3, "samples": 9}
ANSWER = {
    "device": "cpu",
    "name": "",
    "threads": 2,
    "torch": "9.9",
    "python": "3.11.7",
    "measured": True,
    "source": "measured",
    "matrix": [{"name": "float32", "rate": {**RATE, "unit": "FLOP/s"}}],
    "copy": {**RATE, "unit": "B/s"},
    "updates": [{"size": 2**20, "rate": {**RATE, "unit": "B/s"}}],
    "dispatch": COST,
    "profiler": COST,
    "launch": None,
    "together": {"value": 1.3, "low": 1.2, "high": 1.3, "samples": 3, "unit": "CPUs"},
    "handover": COST,
}


class Times(NamedTuple):
    """What psutil tells of a machine's CPUs, seconds."""

    user: float
    idle: float
    iowait: float
    steal: float


def rate(best: float, median: float) -> Rate:
    return Rate("float32", Estimate(best, median, best, 9, "FLOP/s"))


QUIET = Machine("cpu", "a", (rate(2.0, 1.9),), measured=True, torch="9.9")


def test_the_best_block_is_the_peak_and_the_median_one_its_spread() -> None:
    pytest.importorskip("torch")
    script = (
        f"import json, runpy; script = runpy.run_path({str(peaks.SCRIPT)!r}); "
        "print(json.dumps([script['rate']([1.0, 1.5, 2.0], 'B/s'), script['cost']([3e-6, 1e-6, 2e-6])]))"
    )
    done = subprocess.run([python(), "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    rate, cost = (Estimate(**each) for each in json.loads(done.stdout))
    assert rate == Estimate(2.0, 1.5, 2.0, 3, "B/s")
    assert cost == Estimate(1e-6 * 1e9, 1e-6 * 1e9, 2e-6 * 1e9, 3)


def test_what_the_script_answers_is_the_machine(tmp_path: Path) -> None:
    machine = peaks.measure(interpreter(tmp_path, f"echo noise\necho '{json.dumps(ANSWER)}'"), "cpu")
    assert machine.matrix_rate() == 2.0
    assert machine.copy == Estimate(2.0, 1.5, 2.0, 9, "B/s")
    assert [(each.size, each.rate.value) for each in machine.updates] == [(2**20, 2.0)]
    assert machine.dispatch == Estimate(1e3, 1e3, 2e3, 9)
    assert machine.measured
    assert machine.launch is None
    assert machine.together == Estimate(1.3, 1.2, 1.3, 3, "CPUs")
    assert machine.handover == machine.dispatch
    assert replace(machine, other_cpus=0.0, pressure=0.0).handover_usual == 2e3
    assert replace(machine, other_cpus=1.3).handover_usual is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'ModuleNotFoundError: No module named torch' >&2; exit 1", "No module named torch"),
        ("exit 3", "exit status 3"),
        ("echo '{}'", "exit status 0"),
    ],
)
def test_a_measurement_that_fails_says_what_the_interpreter_reported(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(SteptimeError, match=words) as failed:
        peaks.measure(interpreter(tmp_path, body), "cpu")
    assert failed.value.slug == "peaks-failed"


def test_an_interpreter_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SteptimeError, match="No such file"):
        peaks.measure(str(tmp_path / "gone"), "cpu")


def test_what_was_measured_is_remembered_for_this_torch_and_these_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int | None] = []

    def measure(executable: str, device: str, *, threads: int | None = None, brief: bool = False) -> Machine:
        calls.append(threads)
        return QUIET

    monkeypatch.setattr(peaks, "measure", measure)
    for torch, threads in (("9.9", 2), ("9.9", 2), ("9.9", 1), ("10.0", 2), ("9.9", 2)):
        assert peaks.peaks("python", "cpu", torch, threads=threads) == QUIET
    assert calls == [2, 1, 2]
    assert peaks.remembered("cpu", "9.9", threads=2) == QUIET
    assert peaks.remembered("cuda", "9.9", threads=2) is None


def test_what_other_load_disturbed_is_measured_again_until_nothing_disturbs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    worse, better = replace(QUIET, other_cpus=1.3), replace(QUIET, pressure=0.5)
    coming = iter((worse, better, worse, QUIET, worse))
    monkeypatch.setattr(peaks, "measure", lambda *_, **__: next(coming))
    assert peaks.peaks("python", "cpu", "9.9") == worse, "it is used all the same"
    assert peaks.remembered("cpu", "9.9") is None
    assert peaks.peaks("python", "cpu", "9.9") == better, "the quieter one takes its place"
    assert peaks.peaks("python", "cpu", "9.9") == better, "measured once more, and disturbed more"
    assert peaks.peaks("python", "cpu", "9.9") == QUIET
    assert peaks.peaks("python", "cpu", "9.9") == QUIET == peaks.remembered("cpu", "9.9")
    assert peaks.remember(worse, peaks.cache_path("cpu", "", "9.9", None)) == QUIET, "asked for, and disturbed"


def test_a_brief_measurement_is_not_repeated_while_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves a run; `steptime env` measures at length, and that is used from then on."""
    worse, at_length = replace(QUIET, other_cpus=1.3), replace(QUIET, name="at length")
    coming, busy = iter((worse, QUIET, at_length)), True
    monkeypatch.setattr(peaks, "measure", lambda *_, **__: next(coming))
    monkeypatch.setattr(peaks, "is_busy", lambda: busy)
    for _ in range(2):
        assert peaks.peaks("python", "cpu", "9.9", brief=True) == worse
    busy = False
    for _ in range(2):
        assert peaks.peaks("python", "cpu", "9.9", brief=True) == QUIET == peaks.remembered("cpu", "9.9")
    assert peaks.peaks("python", "cpu", "9.9") == at_length == peaks.remembered("cpu", "9.9")


@pytest.mark.parametrize(
    ("measured", "under_load"),
    [
        ({}, False),
        ({"other_cpus": 0.3}, True),
        ({"pressure": 0.3}, True),
        ({"matrix": (rate(2.0, 1.5),)}, False),
        ({"matrix": (rate(2.0, 1.9), rate(4.0, 2.0))}, True),
        ({"other_cpus": 3.0, "measured": False}, False),
    ],
)
def test_what_disturbs_a_measurement(measured: dict[str, Any], under_load: bool) -> None:
    assert replace(QUIET, **measured).under_load is under_load


def test_load_alongside_a_measurement_is_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others took 1.5 of the CPUs, half a CPU of it on another machine of the same host; somebody waited for 40 %."""
    clock = iter((100.0, 110.0))
    looks = iter((Times(50.0, 500.0, 5.0, 1.0), Times(62.0, 510.0, 7.0, 6.0)))
    ours = iter(((10.0, 1.0, 2.0, 0.0, 0.0), (10.5, 1.0, 3.5, 0.0, 0.0)))
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=3.00 avg60=1.00 avg300=0.00 total=7000000\nfull avg10=0.00 total=1\n")
    monkeypatch.setattr(peaks, "PRESSURE", pressure)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(looks))
    monkeypatch.setattr(os, "times", lambda: next(ours))
    load = peaks.OtherLoad()
    pressure.write_text("some avg10=9.00 avg60=1.00 avg300=0.00 total=11000000\nfull avg10=0.00 total=1\n")
    assert load.since() == pytest.approx((1.5, 0.4))
    monkeypatch.setattr(peaks, "PRESSURE", tmp_path / "none")
    assert peaks.stalled_seconds() == 0.0


def test_a_device_of_a_trace_has_the_peaks_measured_here_else_a_datasheets(cache: Path) -> None:
    name = "NVIDIA H100 80GB HBM3"
    sheet = peaks.known(name)
    assert sheet is not None
    assert not sheet.measured
    for number, (device, rate) in enumerate((("cuda", 1.0), ("cuda", 3.0), ("cpu", 4.0))):
        machine = replace(QUIET, device=device, name=name, matrix=(Rate("float32", Estimate(rate, rate, rate, 1)),))
        peaks.remember(machine, peaks.cache_path(device, name, f"torch {number}", None))
        os.utime(peaks.cache_path(device, name, f"torch {number}", None), (number, number))
    measured = peaks.known(name)
    assert measured is not None
    assert (measured.measured, measured.matrix_rate()) == (True, 3.0)
    assert peaks.known("AMD Radeon Graphics") is None
    assert peaks.known("") is None


IMPOSSIBLE = b'{"device":"cpu","name":"","measured":true,"profiler":{"value":600,"low":600,"high":1e308,"samples":2}}'


@pytest.mark.parametrize("content", [b"", b"{", b'{"device": 3}', b"\xff\xfe", IMPOSSIBLE])
def test_a_damaged_cache_is_no_cache(cache: Path, content: bytes) -> None:
    path = peaks.cache_path("cpu", "", "9.9", None)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert peaks.remembered("cpu", "9.9") is None


def test_a_cache_that_cannot_be_written_costs_only_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(peaks, "measure", lambda *_, **__: QUIET)
    assert peaks.peaks("python", "cpu", "9.9") == QUIET


@pytest.mark.parametrize(
    ("best", "median", "other_cpus", "capacity"),
    [(1.3, 1.25, 0.0, 1.25), (1.9, 1.2, 0.0, None), (1.3, 1.25, 0.5, None), (0.0, 0.0, 0.0, None)],
)
def test_what_all_cpus_do_at_once_is_known_where_the_rounds_agree(
    best: float, median: float, other_cpus: float, capacity: float | None
) -> None:
    assert QUIET.capacity is None
    together = Estimate(best, median, best, 5, "CPUs")
    assert replace(QUIET, together=together, other_cpus=other_cpus).capacity == capacity


def test_without_torch_the_environment_is_described_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter(tmp_path, "exit 1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    environment = describe(None, remeasure=False, runs=False, notify=lambda _: None)
    assert environment.torch == ""
    assert environment.identity.usable_cpus >= 1
    assert "--python" in environment.problems[0]


def test_where_no_process_may_be_started_the_other_peaks_are_measured(tmp_path: Path) -> None:
    alone = {**ANSWER, "together": None}
    assert peaks.measure(interpreter(tmp_path, f"echo '{json.dumps(alone)}'"), "cpu").together is None
    pytest.importorskip("torch")
    script = (
        f"import runpy, subprocess; subprocess.Popen = lambda *_, **__: open('/nowhere/at/all'); "
        f"print(runpy.run_path({str(peaks.SCRIPT)!r})['together']())"
    )
    done = subprocess.run([python(), "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["1.0" if os.cpu_count() == 1 else "None"]


@pytest.mark.parametrize(
    "refused",
    [
        "multiprocessing.get_all_start_methods = lambda: ['spawn']",
        "multiprocessing.context.ForkProcess.start = lambda _: open('/nowhere/at/all')",
    ],
)
def test_where_no_worker_can_be_forked_its_handover_is_not_known(refused: str) -> None:
    pytest.importorskip("torch")
    script = (
        "import multiprocessing.context, runpy; "
        f"script = runpy.run_path({str(peaks.SCRIPT)!r}); {refused}; print(script['handover']())"
    )
    done = subprocess.run([python(), "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["None"]


@pytest.mark.slow
def test_real_peaks_are_plausible() -> None:
    pytest.importorskip("torch")
    machine = peaks.measure(sys.executable, "cpu", threads=1)
    rate, copy, dispatch = machine.matrix_rate(), machine.copy, machine.dispatch
    assert rate is not None
    assert copy is not None
    assert dispatch is not None
    assert 1e8 < rate < 1e15, "FLOP/s of one thread"
    assert 1e8 < copy.value < 1e13, "bytes per second"
    assert machine.together is not None
    assert 0.2 < machine.together.value <= (os.cpu_count() or 1), "CPUs of which one works alone"
    assert 100 < dispatch.value < 1e6, "ns of a tiny operator"
    assert machine.handover is not None
    assert 10_000 < machine.handover.value <= machine.handover.high < 1e9, "ns to receive a batch"
    assert machine.threads == 1


@pytest.mark.gpu
def test_real_peaks_of_a_device_are_plausible() -> None:
    machine = peaks.measure(sys.executable, "cuda")
    half, single, copy, launch = machine.matrix_rate("float16"), machine.matrix_rate(), machine.copy, machine.launch
    assert half is not None
    assert single is not None
    assert half > 1.5 * single
    assert copy is not None
    assert copy.value > 5e10
    assert launch is not None
    assert 500 < launch.value < 1e6
