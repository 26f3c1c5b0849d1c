"""Peak FLOP/s and bandwidth: measured by a short run of the user's own torch, remembered in the user's cache folder.

The common part of all measurements of a machine: a script that runs with the user's own torch, the CPU time that others
took meanwhile, and the files that remember the results. A peak that could not be measured is a datasheet's or None, and
says so; it never stops a diagnosis.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from steptime.errors import SteptimeError
from steptime.folders import cache_folder
from steptime.machine.datasheet import look_up
from steptime.machine.identity import processor_name
from steptime.machine.machine import Machine, MemoryRate, Rate
from steptime.quantities import Estimate

Kept = TypeVar("Kept")
PRESSURE = Path("/proc/pressure/cpu")


class Summary(msgspec.Struct, frozen=True):
    """Summary of the timed blocks of a script, in its own unit."""

    best: float
    median: float
    blocks: int


class Measured(msgspec.Struct, Generic[Kept], frozen=True):
    """Answer of a script. other_cpus: CPUs that other programs, or other machines on the same host, kept busy
    meanwhile, on average. pressure: share of that time in which some task waited for a CPU, 0 where unknown."""

    answer: Kept
    other_cpus: float
    pressure: float


class MeasurementError(Exception):
    """A script gave no answer: why, in a few words."""


def measured_by(script: Path, executable: str, words: list[str], kind: type[Kept], seconds: float) -> Measured[Kept]:
    """Runs a script of ours with the user's interpreter, its last line is the answer. Raises MeasurementError."""
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


def peak(summary: Summary, unit: str) -> Estimate:
    """The best block; down to the median one, which tells how disturbed the measurement was."""
    return Estimate(summary.best, summary.median, summary.best, summary.blocks, unit)


def remembered_at(subject: str, *key: str) -> Path:
    """The file of a measurement: one for this machine and all that the key says."""
    text = "\n".join((processor_name(), str(os.cpu_count()), *key))
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
    return cache_folder() / f"{subject}-{digest}.json"


def load_as(kind: type[Kept], path: Path) -> Kept | None:
    """Content of a file; None where there is none, or none that this version can read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None


def store(value: object, path: Path) -> None:
    """Writes it to a file, whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:  # in a recording there may be a link of the job's
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    partial.replace(path)


class OtherLoad:
    """Load on the machine from now on, without this process and its children."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._machine, self._ours = self._seconds()
        self._stalled = stalled_seconds()

    def since(self) -> tuple[float, float]:
        """(CPUs of others, share of the time in which some task waited for a CPU), on average since the beginning."""
        machine, ours = self._seconds()
        elapsed = max(time.monotonic() - self._start, 1e-9)
        others = max(0.0, machine - self._machine - (ours - self._ours))
        return others / elapsed, max(0.0, stalled_seconds() - self._stalled) / elapsed

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """CPU seconds of the whole machine, stolen ones included, and of this process and its ended children."""
        import psutil  # whoever reads peaks needs none of it

        machine = psutil.cpu_times()
        ours = os.times()
        # Linux counts guests in user time as well.
        idle = sum(getattr(machine, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        return sum(machine) - idle, sum(ours[:4])


def stalled_seconds() -> float:
    """Seconds so far in which some task waited for a CPU (Linux's pressure stall information); 0 where unknown."""
    try:
        with PRESSURE.open(encoding="ascii") as file:
            return int(file.readline().rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0


SCRIPT = Path(__file__).with_name("peaks_script.py")
PATIENCE_SECONDS = 120
"""Importing torch takes seconds on a cold disk; the measuring itself takes about three."""
FILE_NAME = "machine.json"
MEASURED = "6"
"""Grows with what is measured or seen of other load: what an earlier version remembered is measured anew."""


class _Update(Summary, frozen=True):
    """Rate of an update in place. size: bytes of all that it goes through."""

    size: int = 0


class _PeaksAnswer(msgspec.Struct, frozen=True):
    """Output of the script: seconds, and rates per second."""

    device: str
    name: str
    threads: int
    torch: str
    python: str
    matrix: dict[str, Summary]
    copy: Summary
    update: list[_Update]
    dispatch: Summary
    profiler: Summary | None
    launch: Summary | None
    together: Summary | None
    handover: Summary | None


def peaks(executable: str, device: str, torch: str, *, threads: int | None = None, name: str = "") -> Machine:
    """The peaks of this machine for a Python with torch: from the cache, else measured now and remembered.

    torch: its version; threads: of torch inside an operator (None: as many as it takes by itself); name: of the device,
    for an accelerator. Raises SteptimeError where they cannot be measured."""
    path = cache_path(device, name, torch, threads)
    machine = load(path)
    if machine is None or machine.under_load:
        machine = remember(measure(executable, device, threads=threads), path)
    return machine


def remembered(device: str, torch: str, *, threads: int | None = None, name: str = "") -> Machine | None:
    """Peaks that an earlier run has measured here, if any has and nothing disturbed it."""
    machine = load(cache_path(device, name, torch, threads))
    return None if machine is None or machine.under_load else machine


def known(name: str) -> Machine | None:
    """The peaks of an accelerator by the driver's name of it: measured on this machine (the newest that nothing
    disturbed, whatever torch did it), else a datasheet's, else none. A trace says only this name of its machine."""
    try:
        files = sorted(cache_folder().glob("peaks-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        files = []
    machines = (load(path) for path in files)
    measured = [each for each in machines if each is not None and each.name == name and each.device != "cpu"]
    return min(measured, key=lambda each: each.under_load, default=None) or look_up(name)


def measure(executable: str, device: str, *, threads: int | None = None) -> Machine:
    """Runs the script with the user's interpreter. Raises SteptimeError (peaks-failed)."""
    words = [device, *([str(threads)] if threads else [])]
    try:
        done = measured_by(SCRIPT, executable, words, _PeaksAnswer, PATIENCE_SECONDS)
    except MeasurementError as error:
        raise SteptimeError(
            "peaks-failed",
            f"The peaks of this machine cannot be measured with {executable}: {error}. Datasheets are in where they "
            "can; `steptime env --remeasure --python PATH` tries another interpreter.",
        ) from None
    answer = done.answer
    return Machine(
        device=answer.device,
        name=answer.name or processor_name(),
        matrix=tuple(Rate(name, peak(rates, "FLOP/s")) for name, rates in answer.matrix.items()),
        copy=peak(answer.copy, "B/s"),
        updates=tuple(MemoryRate(each.size, peak(each, "B/s")) for each in answer.update),
        dispatch=_least(answer.dispatch),
        launch=_least(answer.launch),
        profiler=_least(answer.profiler),
        measured=True,
        source="measured",
        threads=answer.threads,
        torch=answer.torch,
        python=answer.python,
        other_cpus=done.other_cpus,
        pressure=done.pressure,
        together=peak(answer.together, "CPUs") if answer.together is not None else None,
        handover=_least(answer.handover),
    )


def cache_path(device: str, name: str, torch: str, threads: int | None) -> Path:
    """Path of a remembered measurement: one file for a device, a version of torch and a number of threads. The build
    behind a plus sign (2.11.0+cu130) does not count: a wheel of PyPI has it in torch only, not in its metadata."""
    return remembered_at(f"peaks-{device}", MEASURED, device, name, torch.partition("+")[0], str(threads))


def load(path: Path) -> Machine | None:
    """A machine from a file, None where there is none, or none that this version can read."""
    return load_as(Machine, path)


def remember(machine: Machine, path: Path) -> Machine:
    """Stores a machine in the cache, where it can be written to, and returns it. One that other load disturbed is
    measured again next time, and only takes the place of one that was disturbed more: that one is then returned."""
    before = load(path)
    if machine.under_load and before is not None:
        loads = [(each.under_load, each.other_cpus + each.pressure) for each in (before, machine)]
        if loads[0] <= loads[1]:
            return before
    with contextlib.suppress(OSError):
        store(machine, path)
    return machine


def _least(summary: Summary | None) -> Estimate | None:
    """The quickest block, in ns; up to the median one."""
    if summary is None:
        return None
    return Estimate(summary.best * 1e9, summary.best * 1e9, summary.median * 1e9, summary.blocks)
