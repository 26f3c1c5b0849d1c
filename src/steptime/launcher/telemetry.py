"""Telemetry of the job and its machine, taken about once a second from outside of the job."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from steptime.journal import append_to
from steptime.launcher.devices import Devices, ReportedDevices

NAME = "telemetry.jsonl"
PERIOD, LONGEST_PERIOD, RARER = 1.0, 10.0, 1 / 1800
"""Seconds between two samples: least, most, and as a fraction of the job's time so far, so that a day takes 2 MB."""
PRESSURE = Path("/proc/pressure/cpu")
CROWDED = 25.0
"""Percentage of the time with a process that waits for a CPU from which on a machine is busy (machine/machine.py)."""
LARGEST_SHARE = 0.005
"""Largest fraction of one CPU: if samples are expensive (thousands of processes), they become rarer."""


class Telemetry:
    """Timer that appends `TelemetrySample` lines to telemetry.jsonl, until that fails (`failed`). alternating: see
    `CpuLoad`."""

    def __init__(
        self, folder: Path, pid: int, alternating: Callable[[], Iterable[int]] = lambda: (), *, kept: bool = False
    ) -> None:
        self._path = folder / NAME
        self._load = CpuLoad(pid, alternating, kept=kept)
        self._reported, self._devices = ReportedDevices(folder), Devices()
        self._start = time.monotonic()
        self.due = self._start + PERIOD
        self.failed = False

    @property
    def pids(self) -> frozenset[int]:
        return self._load.pids

    def look(self) -> None:
        """Writes a sample, and sets `due` to the time of the next one."""
        start = time.monotonic()
        load = None
        with contextlib.suppress(OSError, psutil.Error):  # a system that hides /proc from us
            load = self._load.look()
        if load is not None and load["resident_bytes"] and not self.failed:  # no memory: only a dead process is left
            self._devices.add(self._reported.new())
            sample = {**load, "devices": self._devices.look(self._load.pids)}
            try:
                append_to(str(self._path), msgspec.json.encode(sample) + b"\n")
            except OSError:
                self.failed = True  # no room, or the recording was removed: the job goes on
        cost = time.monotonic() - start
        period = min(LONGEST_PERIOD, max(PERIOD, RARER * (start - self._start)))
        self.due = start + max(period, cost / LARGEST_SHARE)


class CpuLoad:
    """CPU seconds per second since the last look, of the job's process tree and of everything else. alternating:
    function that returns the roots of jobs that take turns with this one and count as its own. kept: True if the tree's
    root is a watchdog, which is not counted."""

    def __init__(self, pid: int, alternating: Callable[[], Iterable[int]] = lambda: (), *, kept: bool = False) -> None:
        self._without = 1 if kept else 0
        self._root, self._alongside = pid, alternating
        self.pids: frozenset[int] = frozenset({pid})
        self._time = time.perf_counter_ns()
        self._used = {root: cpu for root, (cpu, _) in (self._processes() or {}).items()}
        self._own = self._own_cpu()
        self._machine, self._steal = _machine_cpu()

    def look(self) -> dict[str, Any] | None:
        """Returns the fields of `TelemetrySample` except devices; None after the job's end."""
        now = time.perf_counter_ns()
        seconds = (now - self._time) / 1e9
        found = self._processes()
        if found is None or seconds <= 0:
            return None
        used = {root: cpu for root, (cpu, _) in found.items()}
        job = sum(max(0.0, cpu - self._used.get(root, 0.0)) for root, cpu in used.items())
        own, (machine, steal) = self._own_cpu(), _machine_cpu()
        other = machine - self._machine - job - (own - self._own)
        # Three clocks (of processes, of the machine, of the time between two looks) may exceed the machine together.
        cpus = os.cpu_count() or 1
        job = min(job / seconds, float(cpus))
        sample = {
            "monotonic_ns": now,
            "cpus": cpus,
            "job_cpu": round(job, 4),
            "other_cpu": round(min(max(0.0, other) / seconds, cpus - job), 4),
            "resident_bytes": sum(resident for _, resident in found.values()),
            "pressure": pressure(),
            "steal": None if steal is None else round((steal - (self._steal or 0.0)) / seconds, 4),
        }
        self._time, self._used, self._own, self._machine, self._steal = now, used, own, machine, steal
        return sample

    def _processes(self) -> dict[int, tuple[float, int]] | None:
        """Returns pid of a root -> (CPU seconds, resident bytes) of its tree; None without the job's own root. CPU
        seconds include those of children that ended, as their parents' figures do once they have waited for them."""
        roots, found, pids = [self._root, *self._alongside()], {}, set()
        for root in roots:
            try:
                top = psutil.Process(root)
                family = [top, *top.children(recursive=True)][self._without if root == self._root else 0 :]
            except psutil.Error:
                if root == self._root:
                    return None
                continue
            cpu, resident = 0.0, 0
            for process in family:
                with contextlib.suppress(psutil.Error):  # it ended between the two looks
                    with process.oneshot():
                        times, memory = process.cpu_times(), process.memory_info().rss
                    cpu, resident = cpu + sum(times[:4]), resident + memory
                    pids.add(process.pid)
            found[root] = (cpu, resident)
        self.pids = frozenset(pids)
        return found

    @staticmethod
    def _own_cpu() -> float:
        times = os.times()
        return times.user + times.system


def _machine_cpu() -> tuple[float, float | None]:
    """Returns (busy, stolen) CPU seconds of the machine since its start; stolen: None if unknown."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # guests are counted in user and nice as well
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    steal: float | None = getattr(times, "steal", None)
    return sum(times) - idle - guests - (steal or 0.0), steal


def crowded() -> str:
    """Returns a warning that other processes keep this machine busy, before a trial adds its own; "" if they do not."""
    share = pressure() or 0.0
    if share < CROWDED:
        return ""
    return (
        f"Others keep this machine busy: in {share:.0f} % of the last 10 s some process waited for a CPU. Verdicts "
        "take longer here, and small gains may stay undecided"
    )


def pressure() -> float | None:
    """Returns the percentage of the last 10 s in which some task waited for a CPU (pressure stall information)."""
    try:
        with PRESSURE.open(encoding="ascii") as file:
            return float(file.readline().split("avg10=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None
