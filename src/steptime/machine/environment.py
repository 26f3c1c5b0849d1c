"""Properties of this machine that influence a training step: hardware, installed software, and peaks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from steptime.errors import SteptimeError
from steptime.machine import between_runs, datasheet, peaks
from steptime.machine.identity import Identity, identify
from steptime.machine.machine import Machine
from steptime.own_python import WITHOUT_FOLDER

_VERSION_OF_TORCH = f"{WITHOUT_FOLDER}import importlib.metadata as m; print(m.version('torch'))"


@dataclass(frozen=True, slots=True)
class Environment:
    """Properties of this machine. interpreter: Python whose torch measured the peaks; torch: its version, "" without
    one. machines: peaks of its devices. problems: sentences on what could not be measured."""

    identity: Identity
    interpreter: str
    torch: str
    machines: tuple[Machine, ...]
    problems: tuple[str, ...] = ()


def describe(python: str | None, *, remeasure: bool, runs: bool, notify: Callable[[str], None]) -> Environment:
    """Describes this machine. python: interpreter to measure with, None for the first one with torch. remeasure: True
    to ignore stored results. runs: True to also measure the noise between runs. notify: function called before
    measurements that take seconds. Raises SteptimeError only if a given `python` has no torch."""
    identity = identify()
    interpreter, torch = _interpreter(python)
    if not torch:
        sheets = tuple(filter(None, (datasheet.look_up(each.name) for each in identity.accelerators)))
        problem = "No Python with torch was found, so no peaks were measured. Give one with --python PATH."
        return Environment(identity, interpreter, torch, sheets, (problem,))
    machines: list[Machine] = []
    problems: list[str] = []
    devices = {"cpu": ""}
    if identity.accelerators and "+cpu" not in torch:  # as a build for the CPU is called
        devices["cuda"] = identity.accelerators[0].name
    for device, name in devices.items():
        machine = None if remeasure else peaks.remembered(device, torch, name=name)
        if machine is None:
            notify(f"benchmarking {name or 'this CPU'} with {interpreter} (some seconds)")
            try:
                measured = peaks.measure(interpreter, device)
                machine = peaks.remember(measured, peaks.cache_path(device, name, torch, None))
                if machine is not measured:
                    notify("other processes disturbed it more than the earlier measurement, which steptime keeps")
            except SteptimeError as error:
                machine = datasheet.look_up(name, device)
                problems.append(error.sentence)
        spread = between_runs.remembered(device, torch)
        if runs:
            notify(f"measuring the noise between runs of a small job on {name or 'this CPU'} (half a minute)")
            try:
                spread = between_runs.measure(interpreter, device, torch)
            except peaks.MeasurementError as error:
                problems.append(f"The noise between runs could not be measured: {error}.")
        machines += [replace(each, between_runs=spread) for each in (machine,) if each is not None]
    return Environment(identity, interpreter, torch, tuple(machines), tuple(problems))


def interpreter_with_torch(python: str | None) -> str:
    """Path of the given interpreter, else of the first one with torch. Raises SteptimeError if there is none."""
    found, torch = _interpreter(python)
    if not torch:
        raise SteptimeError("python-without-torch", "No Python with torch was found. Give one with --python PATH.")
    return found


def _interpreter(python: str | None) -> tuple[str, str]:
    """(path, version of torch) of the given interpreter, else of the first with torch among our own, python and
    python3."""
    candidates = [python] if python else [sys.executable, shutil.which("python"), shutil.which("python3")]
    for candidate in filter(None, candidates):
        with suppress(OSError, subprocess.TimeoutExpired):
            run = subprocess.run([candidate, "-c", _VERSION_OF_TORCH], capture_output=True, timeout=30, check=False)
            if torch := run.stdout.decode(errors="replace").strip():
                return candidate, torch
    if python:
        raise SteptimeError(
            "python-without-torch",
            f"{python} has no torch, or cannot be run. Give the interpreter of your jobs with --python PATH.",
        )
    return sys.executable, ""
