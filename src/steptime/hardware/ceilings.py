"""Measured ceilings: a short run of the user's own torch, remembered in the user's cache folder.

One law: a ceiling that could not be measured is a datasheet's or None, and says so; it never stops a diagnosis.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from steptime.errors import SteptimeError
from steptime.folders import cache_folder
from steptime.hardware.datasheet import look_up
from steptime.hardware.identity import processor_name
from steptime.hardware.machine import Machine, MemoryRate, Rate
from steptime.hardware.measurement import (
    Measured,
    MeasurementError,
    Summary,
    ceiling,
    load_as,
    measured_by,
    remembered_at,
    store,
)
from steptime.quantities import Estimate

SCRIPT = Path(__file__).with_name("ceilings_script.py")
PATIENCE_SECONDS = 120
"""Importing torch takes seconds on a cold disk; the measuring itself takes about three."""
FILE_NAME = "machine.json"
MEASURED = "5"
"""Grows with what is measured, and with what is seen of other load, so that what an earlier version remembered is
measured anew."""


class _Update(Summary, frozen=True):
    """Of an update in place. size: bytes of all that it goes through."""

    size: int = 0


class _Answer(msgspec.Struct, frozen=True):
    """What the script prints: seconds, and rates per second."""

    device: str
    name: str
    threads: int
    torch: str
    python: str
    matrix: dict[str, Summary]
    copy: Summary
    update: list[_Update]
    dispatch: Summary
    launch: Summary | None
    together: Summary | None
    handover: Summary | None


def ceilings(executable: str, device: str, torch: str, *, threads: int | None = None, name: str = "") -> Machine:
    """The ceilings of this machine for a Python with torch: from the cache, else measured now and remembered.

    torch: its version; threads: of torch inside an operator (None: as many as it takes by itself); name: of the device,
    for an accelerator. Raises SteptimeError where they cannot be measured.
    """
    path = cache_path(device, name, torch, threads)
    machine = load(path)
    if machine is None or machine.disturbed:
        machine = remember(measure(executable, device, threads=threads), path)
    return machine


def remembered(device: str, torch: str, *, threads: int | None = None, name: str = "") -> Machine | None:
    """What an earlier run has measured here, if any has and nothing disturbed it."""
    machine = load(cache_path(device, name, torch, threads))
    return None if machine is None or machine.disturbed else machine


def known(name: str) -> Machine | None:
    """The ceilings of an accelerator by the driver's name of it: measured on this machine (the newest that nothing
    disturbed, whatever torch did it), else a datasheet's, else none. A trace says no more of where it was made than
    this name."""
    try:
        files = sorted(cache_folder().glob("ceilings-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        files = []
    machines = (load(path) for path in files)
    measured = [each for each in machines if each is not None and each.name == name and each.device != "cpu"]
    return min(measured, key=lambda each: each.disturbed, default=None) or look_up(name)


def measure(executable: str, device: str, *, threads: int | None = None) -> Machine:
    """Runs the script with the user's interpreter. Raises SteptimeError (ceilings-failed)."""
    words = [device, *([str(threads)] if threads else [])]
    try:
        done = measured_by(SCRIPT, executable, words, _Answer, PATIENCE_SECONDS)
    except MeasurementError as error:
        raise _failure(executable, str(error)) from None
    return _machine(done)


def cache_path(device: str, name: str, torch: str, threads: int | None) -> Path:
    """Where a measurement is remembered: one file for a device, a version of torch and a number of threads."""
    return remembered_at(f"ceilings-{device}", MEASURED, device, name, torch, str(threads))


def load(path: Path) -> Machine | None:
    """A machine from a file, None where there is none, or none that this version can read."""
    return load_as(Machine, path)


def remember(machine: Machine, path: Path) -> Machine:
    """Stores a machine in the cache, where it can be written to, and returns it. One that other load disturbed is
    measured again next time, and only takes the place of one that was disturbed more: that one is then returned."""
    before = load(path)
    if machine.disturbed and before is not None and _load(before) <= _load(machine):
        return before
    with contextlib.suppress(OSError):
        store(machine, path)
    return machine


def _load(machine: Machine) -> tuple[bool, float]:
    """By which of two measurements the quieter one is told."""
    return machine.disturbed, machine.other_cpus + machine.pressure


def _machine(done: Measured[_Answer]) -> Machine:
    answer = done.answer
    return Machine(
        device=answer.device,
        name=answer.name or processor_name(),
        matrix=tuple(Rate(name, ceiling(rates, "FLOP/s")) for name, rates in answer.matrix.items()),
        copy=ceiling(answer.copy, "B/s"),
        updates=tuple(MemoryRate(each.size, ceiling(each, "B/s")) for each in answer.update),
        dispatch=_floor(answer.dispatch),
        launch=_floor(answer.launch) if answer.launch is not None else None,
        measured=True,
        source="measured",
        threads=answer.threads,
        torch=answer.torch,
        python=answer.python,
        other_cpus=done.other_cpus,
        pressure=done.pressure,
        together=ceiling(answer.together, "CPUs") if answer.together is not None else None,
        handover=_floor(answer.handover) if answer.handover is not None else None,
    )


def _floor(summary: Summary) -> Estimate:
    """The quickest block, in ns; up to the median one."""
    return Estimate(summary.best * 1e9, summary.best * 1e9, summary.median * 1e9, summary.blocks)


def _failure(executable: str, reason: str) -> SteptimeError:
    return SteptimeError(
        "ceilings-failed",
        f"The ceilings of this machine cannot be measured with {executable}: {reason}. Datasheets stand in where they "
        "can; `steptime env --remeasure --python PATH` tries another interpreter.",
    )
