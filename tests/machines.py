"""A machine that was measured once: tests that only need some peaks do not wait seconds for those of this one."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from steptime.machine.machine import Machine, MemoryRate, Rate
from steptime.machine.peaks import cache_path, store
from steptime.quantities import Estimate

KIB = 1024


def _measured(value: float, unit: str) -> Estimate:
    return Estimate(value, value, value, 20, unit)


def two_cpus(threads: int | None, torch: str) -> Machine:
    """Two CPUs of an EPYC 9B14, rounded."""
    return Machine(
        "cpu",
        "two CPUs",
        matrix=(
            Rate("float32", _measured(1e11, "FLOP/s")),
            Rate("bfloat16", _measured(4.5e11, "FLOP/s")),
            Rate("float16", _measured(2.8e9, "FLOP/s")),
        ),
        copy=_measured(3.7e10, "B/s"),
        updates=tuple(
            MemoryRate(size * KIB, _measured(rate, "B/s")) for size, rate in ((1024, 1.7e11), (65536, 4.5e10))
        ),
        dispatch=_measured(900.0, "ns"),
        profiler=_measured(700.0, "ns"),
        together=_measured(2.0, "CPUs"),
        handover=_measured(8e5, "ns"),
        measured=True,
        source="measured",
        threads=threads,
        torch=torch,
    )


GIVEN = "STEPTIME_TEST_PEAKS"
"""A folder with peaks that were measured before, of a CUDA device: tests on it do not each measure it anew."""


def remember_peaks(folder: Path) -> None:
    """Lets every steptime whose XDG_CACHE_HOME is the folder believe that it has measured this machine."""
    for given in Path(os.environ[GIVEN]).glob("peaks-cuda-*.json") if GIVEN in os.environ else ():
        (folder / "steptime").mkdir(parents=True, exist_ok=True)
        (folder / "steptime" / given.name).write_bytes(given.read_bytes())
    try:
        torch = version("torch")
    except PackageNotFoundError:
        return
    for each in (None, *range(1, (os.cpu_count() or 1) + 1)):
        store(two_cpus(each, torch), folder / "steptime" / cache_path("cpu", "", torch, each).name)
