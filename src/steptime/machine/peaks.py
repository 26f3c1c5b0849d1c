"""Peak FLOP/s and bandwidth: measured by a short run of the user's own torch, stored in the user's cache folder.

Also the parts that all measurements share: a script that runs with the user's torch, the CPU time that others took
meanwhile, and the files with stored results. A peak that could not be measured is a datasheet's or None, and is marked
so; it never stops a diagnosis.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from steptime.errors import SteptimeError
from steptime.folders import cache_folder
from steptime.machine.datasheet import look_up
from steptime.machine.identity import processor_name
from steptime.machine.machine import BUSY_CPUS, BUSY_PRESSURE, Machine

Kept = TypeVar("Kept")
PRESSURE = Path("/proc/pressure/cpu")


class Measured(msgspec.Struct, Generic[Kept], frozen=True):
    """Answer of a script. other_cpus: CPUs that other programs, or other machines on the same host, kept busy
    meanwhile, on average. pressure: fraction of that time in which some task waited for a CPU, 0 if unknown."""

    answer: Kept
    other_cpus: float
    pressure: float


class MeasurementError(Exception):
    """Failure of a script to answer, with the reason in a few words."""


def measured_by(script: Path, executable: str, words: list[str], kind: type[Kept], seconds: float) -> Measured[Kept]:
    """Runs a script with the user's interpreter; the last line of output is the answer. Raises MeasurementError."""
    load = OtherLoad()
    command = [executable, str(script), *words]
    try:
        run = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        answer = msgspec.json.decode(run.stdout.splitlines()[-1] if run.stdout else b"", type=kind)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementError(str(error)) from None
    except msgspec.DecodeError:
        last = run.stderr.decode(errors="backslashreplace").strip().splitlines()[-1:]
        raise MeasurementError(last[0] if last else f"exit status {run.returncode}") from None
    return Measured(answer, *load.since())


def remembered_at(subject: str, *key: str) -> Path:
    """Path of a stored measurement for this machine and this key."""
    text = "\n".join((processor_name(), str(os.cpu_count()), *key))
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
    return cache_folder() / f"{subject}-{digest}.json"


def load_as(kind: type[Kept], path: Path) -> Kept | None:
    """Content of a file; None if it is missing or this version cannot read it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None


def store(value: object, path: Path) -> None:
    """Writes the value to a file, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:  # in a recording there may be a link of the job's
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    partial.replace(path)


class OtherLoad:
    """Load of other processes on the machine since the object was made, without this process and its children."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._machine, self._ours = self._seconds()
        self._stalled = stalled_seconds()

    def since(self) -> tuple[float, float]:
        """Load on average since the object was made: (CPUs used by others, fraction of the time in which some task
        waited for a CPU)."""
        machine, ours = self._seconds()
        elapsed = max(time.monotonic() - self._start, 1e-9)
        others = max(0.0, machine - self._machine - (ours - self._ours))
        return others / elapsed, max(0.0, stalled_seconds() - self._stalled) / elapsed

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """(CPU seconds of the whole machine, stolen ones included; CPU seconds of this process and its ended
        children)."""
        import psutil  # whoever reads peaks needs none of it

        machine = psutil.cpu_times()
        ours = os.times()
        # Linux counts guests in user time as well.
        idle = sum(getattr(machine, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        return sum(machine) - idle, sum(ours[:4])


def stalled_seconds() -> float:
    """Seconds so far in which some task waited for a CPU (Linux's pressure stall information); 0 if unknown."""
    try:
        with PRESSURE.open(encoding="ascii") as file:
            return int(file.readline().rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0


SCRIPT = Path(__file__).with_name("peaks_script.py")
PATIENCE_SECONDS = 120
"""Most seconds: importing torch takes seconds on a cold disk, while the measurement takes about three."""
LOOK_SECONDS = 0.1
"""Seconds of a look at other load: ten ticks of the system's clock of CPU time."""
FILE_NAME = "machine.json"
MEASURED = "6"
"""Version of the measurement, incremented when what is measured changes; older results are measured again."""


def peaks(
    executable: str, device: str, torch: str, *, threads: int | None = None, name: str = "", brief: bool = False
) -> Machine:
    """Peaks of this machine for a Python with torch, stored or measured now.

    torch: its version; threads: number of torch's threads inside an operator (None for its default); name: the device's
    name, for an accelerator. brief: True if brief measurements are enough, because somebody waits for something else; a
    disturbed one is then repeated only if the machine idles now. Raises SteptimeError if they cannot be measured."""
    path = cache_path(device, name, torch, threads, brief=brief)
    machine = load_as(Machine, path)
    if machine is None or (machine.under_load and not (brief and is_busy())):
        machine = remember(measure(executable, device, threads=threads, brief=brief), path)
    return machine


def remembered(device: str, torch: str, *, threads: int | None = None, name: str = "") -> Machine | None:
    """Stored peaks of an earlier, undisturbed measurement on this machine, a brief one if there is no other; None if
    there are none."""
    stored = (load_as(Machine, cache_path(device, name, torch, threads, brief=brief)) for brief in (False, True))
    return next((each for each in stored if each is not None and not each.under_load), None)


def is_busy() -> bool:
    """True if other load would disturb a measurement that started now."""
    load = OtherLoad()
    time.sleep(LOOK_SECONDS)
    others, pressure = load.since()
    return others > BUSY_CPUS or pressure > BUSY_PRESSURE


def known(name: str) -> Machine | None:
    """Peaks of an accelerator by the driver's name, which is all that a trace has of its machine: the newest
    undisturbed measurement here, with any torch, else a datasheet's, else None."""
    try:
        files = sorted(cache_folder().glob("peaks-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        files = []
    machines = (load_as(Machine, path) for path in files)
    measured = [each for each in machines if each is not None and each.name == name and each.device != "cpu"]
    return min(measured, key=lambda each: each.under_load, default=None) or look_up(name)


def measure(executable: str, device: str, *, threads: int | None = None, brief: bool = False) -> Machine:
    """Measures the peaks by running the script with the user's interpreter. Raises SteptimeError (peaks-failed)."""
    words = [device, str(threads or 0), str(int(brief))]
    try:
        done = measured_by(SCRIPT, executable, words, Machine, PATIENCE_SECONDS)
    except MeasurementError as error:
        raise SteptimeError(
            "peaks-failed",
            f"Benchmarking this machine with {executable} failed: {error}. The report uses datasheets where it "
            "can. To try another interpreter: steptime env --remeasure --python PATH",
        ) from None
    name = done.answer.name or processor_name()
    return replace(done.answer, name=name, other_cpus=done.other_cpus, pressure=done.pressure)


def cache_path(device: str, name: str, torch: str, threads: int | None, *, brief: bool = False) -> Path:
    """Path of a stored measurement: one file per device, version of torch, number of threads and length. The build
    after a plus sign (2.11.0+cu130) is ignored, because a wheel of PyPI has it in torch but not in its metadata."""
    key = (MEASURED, device, name, torch.partition("+")[0], str(threads), *(("brief",) if brief else ()))
    return remembered_at(f"peaks-{device}", *key)


def remember(machine: Machine, path: Path) -> Machine:
    """Stores a machine in the cache, if writable, and returns it. A machine measured under load is measured again next
    time, and replaces only one measured under more load; otherwise that earlier one stays and is returned."""
    before = load_as(Machine, path)
    if machine.under_load and before is not None:
        loads = [(each.under_load, each.other_cpus + each.pressure) for each in (before, machine)]
        if loads[0] <= loads[1]:
            return before
    with contextlib.suppress(OSError):
        store(machine, path)
    return machine
