"""What runs of one job differ by on a machine: measured with the user's torch when it is asked for, and allowed for."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from advice.healthy import HEALTHY, MACHINE
from machine.interpreters import interpreter

from steptime.machine import between_runs, peaks
from steptime.machine.between_runs import DIFFERENCE
from steptime.machine.machine import BUSY_CPUS
from steptime.quantities import BETWEEN_RUNS


def counting(folder: Path) -> str:
    """A Python whose job takes 100, 101, 102 … µs per step, one run after the other."""
    body = f"echo >> {folder}/runs\nprintf '{{\"step\": 0.%06d}}\\n' $((99 + $(wc -l < {folder}/runs)))"
    return interpreter(folder, body)


@pytest.mark.usefixtures("cache")
def test_what_eight_runs_differ_by_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks.OtherLoad, "since", lambda self: (0.0, 0.0))
    assert between_runs.remembered("cpu", "9.9") is None
    assert between_runs.measure(counting(tmp_path), "cpu", "9.9") == pytest.approx(DIFFERENCE * 2 / 103.5)
    assert between_runs.remembered("cpu", "9.9") == pytest.approx(DIFFERENCE * 2 / 103.5)
    assert between_runs.remembered("cpu", "9.8") is None


@pytest.mark.usefixtures("cache")
def test_runs_alongside_other_programs_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks.OtherLoad, "since", lambda self: (2 * BUSY_CPUS, 0.0))
    with pytest.raises(peaks.MeasurementError, match=r"other processes used 0\.4 CPUs"):
        between_runs.measure(counting(tmp_path), "cpu", "9.9")
    assert between_runs.remembered("cpu", "9.9") is None


@pytest.mark.slow
def test_the_job_runs_with_a_real_torch() -> None:
    pytest.importorskip("torch")
    done = peaks.measured_by(between_runs.SCRIPT, sys.executable, ["cpu"], dict[str, float], 60)
    assert done.answer["step"] > 0


def test_what_was_measured_on_the_machine_takes_the_place_of_what_is_assumed() -> None:
    measured = replace(HEALTHY, machine=replace(MACHINE, between_runs=0.011))
    assert (replace(HEALTHY, machine=None).between_runs, measured.between_runs) == (BETWEEN_RUNS, 0.011)
