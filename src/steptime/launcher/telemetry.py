"""Telemetry: what the job and the machine around it do, looked at about once a second from outside of the job."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from steptime.journal import append_to
from steptime.recording.recording import TelemetrySample

NAME = "telemetry.jsonl"
PERIOD, LONGEST_PERIOD, RARER = 1.0, 10.0, 1 / 1800
"""Seconds between two samples: more as the job gets on, by this share of its time, so that a day takes 2 MB."""
PRESSURE = Path("/proc/pressure/cpu")
LARGEST_SHARE = 0.005
"""Of one CPU: where a look is dear (thousands of processes), the looks become rarer."""


class Telemetry:
    """Appends a `TelemetrySample` a line to telemetry.jsonl. Once it cannot be written, `failed` is set and nothing
    more is tried. beside: as of `CpuLoad`."""

    def __init__(
        self, folder: Path, pid: int, beside: Callable[[], Iterable[int]] = lambda: (), *, kept: bool = False
    ) -> None:
        self._path = folder / NAME
        self._load = CpuLoad(pid, beside, kept=kept)
        self._devices = find_devices()
        self._begin = time.monotonic()
        self.due = self._begin + PERIOD
        self.failed = False

    @property
    def pids(self) -> frozenset[int]:
        return self._load.pids

    def look(self) -> None:
        """Takes a sample, writes it, and sets `due` to the time of the next one."""
        begin = time.monotonic()
        load = None
        with contextlib.suppress(OSError, psutil.Error):  # a system that hides /proc from us
            load = self._load.look()
        if load is not None and load["resident_bytes"] and not self.failed:  # no memory: only a dead process is left
            devices = self._devices.look(self._load.pids) if self._devices is not None else {}
            try:
                append_to(str(self._path), msgspec.json.encode(TelemetrySample(**load, **devices)) + b"\n")
            except OSError:
                self.failed = True  # no room, or the recording was removed: the job goes on
        cost = time.monotonic() - begin
        period = min(LONGEST_PERIOD, max(PERIOD, RARER * (begin - self._begin)))
        self.due = begin + max(period, cost / LARGEST_SHARE)


class CpuLoad:
    """CPU seconds per second since the last look, of the job's process tree and of everything else. beside: roots of
    jobs that take turns with it, whose work counts as its own. kept: whether roots are keepers, which are no part of
    their jobs."""

    def __init__(self, pid: int, beside: Callable[[], Iterable[int]] = lambda: (), *, kept: bool = False) -> None:
        self._without = 1 if kept else 0
        self._root, self._beside = pid, beside
        self.pids: frozenset[int] = frozenset({pid})
        self._time = time.perf_counter_ns()
        self._used: dict[tuple[int, float], float] = {}
        self._own = self._own_cpu()
        self._machine, self._steal = _machine_cpu()

    def look(self) -> dict[str, Any] | None:
        """The fields of `TelemetrySample` that are not about accelerators; None when the job is gone."""
        now = time.perf_counter_ns()
        seconds = (now - self._time) / 1e9
        found = self._processes()
        if found is None or seconds <= 0:
            return None
        used = {key: cpu for key, (cpu, _) in found.items()}
        job = sum(max(0.0, cpu - self._used.get(key, 0.0)) for key, cpu in used.items())
        own, (machine, steal) = self._own_cpu(), _machine_cpu()
        other = machine - self._machine - job - (own - self._own)
        sample = {
            "monotonic_ns": now,
            "job_cpu": round(job / seconds, 4),
            "other_cpu": round(max(0.0, other) / seconds, 4),
            "resident_bytes": sum(resident for _, resident in found.values()),
            "pressure": _pressure(),
            "steal": None if steal is None else round((steal - (self._steal or 0.0)) / seconds, 4),
        }
        self._time, self._used, self._own, self._machine, self._steal = now, used, own, machine, steal
        return sample

    def _processes(self) -> dict[tuple[int, float], tuple[float, int]] | None:
        """(pid, start) -> (CPU seconds, resident bytes) of the job's living processes; None when its root is gone."""
        try:
            root = psutil.Process(self._root)
            family = [root, *root.children(recursive=True)][self._without :]
        except psutil.Error:
            return None
        for each in self._beside():
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(each)
                family += [root, *root.children(recursive=True)][self._without :]
        found = {}
        for process in family:
            try:
                times, resident = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                continue  # it ended between the two looks
            found[process.pid, process.create_time()] = (times.user + times.system, resident)
        self.pids = frozenset(pid for pid, _ in found)
        return found

    @staticmethod
    def _own_cpu() -> float:
        times = os.times()
        return times.user + times.system


def _machine_cpu() -> tuple[float, float | None]:
    """(busy, stolen) CPU seconds of the whole machine since it started; stolen is None where the system does not
    tell."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # guests are counted in user and nice as well
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    steal: float | None = getattr(times, "steal", None)
    return sum(times) - idle - guests - (steal or 0.0), steal


def _pressure() -> float | None:
    """Percent of the last ten seconds in which some task waited for a CPU (Linux's pressure stall information)."""
    try:
        with PRESSURE.open(encoding="ascii") as file:
            return float(file.readline().split("avg10=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None


class NvidiaDevices:
    """The accelerators that the job may use, through NVML.

    One figure for all of them: the mean utilisation, the sum of memory and of power, the lowest clock, the union of the
    throttle reasons, the worst link to the host.
    """

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = tuple(handles)

    def look(self, pids: frozenset[int]) -> dict[str, Any]:
        """The gpu fields of `TelemetrySample`; {} where a device does not answer."""
        nvml = self._nvml
        try:
            rows = [self._one(handle) for handle in self._handles]
            users = [user.pid for handle in self._handles for user in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        except nvml.NVMLError:
            return {}
        return {
            "gpu_utilization": sum(row[0] for row in rows) / len(rows),
            "gpu_memory_bytes": sum(row[1] for row in rows),
            "gpu_clock_mhz": min(row[2] for row in rows),
            "gpu_max_clock_mhz": min(row[3] for row in rows),
            "gpu_throttle_reasons": functools.reduce(operator.or_, (row[4] for row in rows)),
            "gpu_memory_total_bytes": sum(row[5] for row in rows),
            **self._power(),
            **self._link(),
            # in a container NVML gives the host's process numbers: strangers can be told only where ours are known
            "gpu_other_processes": len(set(users) - pids) if pids & set(users) or not users else None,
        }

    def free_bytes(self) -> int:
        """Of memory, on the device that has the least; 0 where one does not answer."""
        try:
            return min(int(self._nvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in self._handles)
        except self._nvml.NVMLError:
            return 0

    def _power(self) -> dict[str, float]:
        """Power and its limit; {} where a device does not tell them."""
        used, limit = self._told("PowerUsage"), self._told("EnforcedPowerLimit")
        if not used or not limit:
            return {}
        return {"gpu_power_watts": sum(used) / 1000, "gpu_power_limit_watts": sum(limit) / 1000}

    def _link(self) -> dict[str, int]:
        """Of the device whose link to the host is the least of what it could be; {} where one does not tell."""
        names = ("CurrPcieLinkWidth", "MaxPcieLinkWidth", "CurrPcieLinkGeneration", "MaxPcieLinkGeneration")
        told = [self._told(name) for name in names]
        links = [each for each in zip(*told, strict=True) if all(each)] if all(told) else []
        if not links:
            return {}
        width, widest, generation, newest = min(links, key=lambda each: each[0] / each[1] * 2.0 ** (each[2] - each[3]))
        return {
            "gpu_link_width": width,
            "gpu_link_max_width": widest,
            "gpu_link_generation": generation,
            "gpu_link_max_generation": newest,
        }

    def _told(self, name: str) -> list[int]:
        """What every device says of itself; [] where one does not know it, as a slice of a device does not."""
        ask = getattr(self._nvml, f"nvmlDeviceGet{name}", None)
        with contextlib.suppress(self._nvml.NVMLError):
            return [int(ask(handle)) for handle in self._handles] if ask is not None else []
        return []

    def _one(self, handle: Any) -> tuple[int, int, int, int, int, int]:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return (
            nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            memory.used,
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            memory.total,
        )


def find_devices() -> NvidiaDevices | None:
    """The devices that CUDA_VISIBLE_DEVICES leaves to the job; None for none, or without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        names = _visible(os.environ.get("CUDA_VISIBLE_DEVICES"), pynvml.nvmlDeviceGetCount())
        by_number, by_name = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
        handles = [by_number(int(name)) if name.isdigit() else by_name(name.encode()) for name in names]
    except (ImportError, OSError, ValueError):
        return None
    except pynvml.NVMLError:
        return None
    return NvidiaDevices(pynvml, handles) if handles else None


def _visible(setting: str | None, count: int) -> list[str]:
    """Names of devices as CUDA reads the setting: all without one, none after an empty or negative entry."""
    if setting is None:
        return [str(number) for number in range(count)]
    names = []
    for name in setting.split(","):
        if not name.strip() or name.strip().startswith("-"):
            break
        names.append(name.strip())
    return names
