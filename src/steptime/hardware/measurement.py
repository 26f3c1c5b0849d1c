"""What all measurements of a machine share: a script that runs with the user's own torch, what others took of the CPUs
meanwhile, and the files that remember what came out."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import psutil

from steptime.folders import cache_folder
from steptime.hardware.identity import processor_name
from steptime.quantities import Estimate

Kept = TypeVar("Kept")
PRESSURE = Path("/proc/pressure/cpu")


class Summary(msgspec.Struct, frozen=True):
    """Of the timed blocks of a script, in its own unit."""

    best: float
    median: float
    blocks: int


class Measured(msgspec.Struct, Generic[Kept], frozen=True):
    """What a script answered. other_cpus: CPUs that other programs, or other machines on the same host, kept busy
    meanwhile, on average. pressure: share of that time in which some task waited for a CPU, 0 where the system does not
    tell."""

    answer: Kept
    other_cpus: float
    pressure: float


class MeasurementError(Exception):
    """A script gave no answer: why, in a few words."""


def measured_by(script: Path, executable: str, words: list[str], kind: type[Kept], seconds: float) -> Measured[Kept]:
    """Runs a script of ours with the user's interpreter, which prints its answer as its last line. Raises
    MeasurementError."""
    load = Load()
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


def ceiling(summary: Summary, unit: str) -> Estimate:
    """The best block; down to the median one, which tells how disturbed the measurement was."""
    return Estimate(summary.best, summary.median, summary.best, summary.blocks, unit)


def remembered_at(subject: str, *key: str) -> Path:
    """The file of a measurement: one for this machine and all that the key says."""
    text = "\n".join((processor_name(), str(os.cpu_count()), *key))
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
    return cache_folder() / f"{subject}-{digest}.json"


def load_as(kind: type[Kept], path: Path) -> Kept | None:
    """What a file holds; None where there is none, or none that this version can read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None


def store(value: object, path: Path) -> None:
    """Writes it to a file, whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    partial.replace(path)


class Load:
    """What the machine does from now on beside this process and its children."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._machine, self._ours = self._seconds()
        self._stalled = stalled_seconds()

    def since(self) -> tuple[float, float]:
        """(CPUs of others, share of the time in which some task waited for a CPU), on average since the beginning."""
        machine, ours = self._seconds()
        elapsed = max(time.monotonic() - self._begin, 1e-9)
        others = max(0.0, machine - self._machine - (ours - self._ours))
        return others / elapsed, max(0.0, stalled_seconds() - self._stalled) / elapsed

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """CPU seconds of the whole machine, those included that its host gave to others, and of this process with its
        children that have ended."""
        machine = psutil.cpu_times()
        ours = os.times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return sum(machine) - idle - _counted_twice(machine), sum(ours[:4])


def stalled_seconds() -> float:
    """Seconds so far in which some task waited for a CPU (Linux's pressure stall information); 0 where the system does
    not tell."""
    try:
        with PRESSURE.open(encoding="ascii") as file:
            return int(file.readline().rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0


def _counted_twice(machine: object) -> float:
    """Linux counts guests in user time as well."""
    return float(getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0))
