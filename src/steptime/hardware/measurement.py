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


class Summary(msgspec.Struct, frozen=True):
    """Of the timed blocks of a script, in its own unit."""

    best: float
    median: float
    blocks: int


class Measured(msgspec.Struct, Generic[Kept], frozen=True):
    """What a script answered. other_cpus: CPUs that other programs kept busy meanwhile, on average."""

    answer: Kept
    other_cpus: float


class MeasurementError(Exception):
    """A script gave no answer: why, in a few words."""


def measured_by(script: Path, executable: str, words: list[str], kind: type[Kept], seconds: float) -> Measured[Kept]:
    """Runs a script of ours with the user's interpreter, which prints its answer as its last line. Raises
    MeasurementError."""
    busy = _BusyCpus()
    command = [executable, str(script), *words]
    try:
        run = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        answer = msgspec.json.decode(run.stdout.splitlines()[-1] if run.stdout else b"", type=kind)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementError(str(error)) from None
    except msgspec.DecodeError:
        last = run.stderr.decode(errors="backslashreplace").strip().splitlines()[-1:]
        raise MeasurementError(last[0] if last else f"exit status {run.returncode}") from None
    return Measured(answer, busy.others())


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


class _BusyCpus:
    """CPUs kept busy from now on by programs that are not children of this one."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._machine, self._ours = self._seconds()

    def others(self) -> float:
        """On average since the beginning."""
        machine, ours = self._seconds()
        return max(0.0, machine - self._machine - (ours - self._ours)) / max(time.monotonic() - self._begin, 1e-9)

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """CPU seconds of the whole machine, and of this process with its children that have ended."""
        machine = psutil.cpu_times()
        ours = os.times()
        idle = machine.idle + getattr(machine, "iowait", 0.0) + getattr(machine, "steal", 0.0)
        return sum(machine) - idle - _counted_twice(machine), sum(ours[:4])


def _counted_twice(machine: object) -> float:
    """Linux counts guests in user time as well."""
    return float(getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0))
