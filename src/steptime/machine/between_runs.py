"""Noise between runs of one job on this machine: a small job in fresh processes with different memory, caches and CPUs.

Measured on request, and stored."""

from __future__ import annotations

import contextlib
from pathlib import Path
from statistics import median

from steptime.machine.machine import BUSY_CPUS
from steptime.machine.peaks import MeasurementError, load_as, measured_by, remembered_at, store

SCRIPT = Path(__file__).with_name("between_runs_script.py")
RUNS = 8
DIFFERENCE = 1.96 * 2**0.5 * 1.4826
"""Factor on the median deviation: 95 % of differences of two runs are smaller, if normally distributed. One disturbed
run out of eight has no influence."""
LEAST = 0.005
"""Least noise, as a fraction of a step: clocks, temperature and memory layout move any job by this much, however alike
eight runs were."""
PATIENCE_SECONDS = 60
"""Most seconds for one process: importing torch takes seconds on a cold disk."""


def measure(executable: str, device: str, torch: str) -> float:
    """Measures the fraction of a step by which unchanged runs differ, stores and returns it. torch: its version. Raises
    MeasurementError, also if other programs take part of the CPUs."""
    done = [measured_by(SCRIPT, executable, [device], dict[str, float], PATIENCE_SECONDS) for _ in range(RUNS)]
    others = max(each.other_cpus for each in done)
    if others > BUSY_CPUS:
        raise MeasurementError(f"other processes used {others:.1f} CPUs meanwhile")
    steps = [each.answer["step"] for each in done]
    middle = median(steps)
    spread = max(LEAST, DIFFERENCE * median(abs(step - middle) for step in steps) / middle)
    with contextlib.suppress(OSError):  # where the cache cannot be written to it is not known next time
        store(spread, _path(device, torch))
    return spread


def remembered(device: str, torch: str) -> float | None:
    """Stored fraction of an earlier measurement on this machine; None if there is none."""
    return load_as(float, _path(device, torch))


def _path(device: str, torch: str) -> Path:
    return remembered_at("between-runs", device, torch)
