"""NVIDIA devices of a job, each by itself, through the driver's management library (NVML).

Only devices count on which the job's processes report a context: a machine of eight devices seldom belongs to the job
alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from steptime.recording.documents import decode_fact
from steptime.recording.recording import DeviceFacts

FACTS = "process-*/facts.jsonl"
MARK = b'"fact": "device"'
"""Part of the line with which the probe reports a device."""
KINDS = "GPU-", "MIG-"
"""Prefix of a UUID in NVML, for a device and for an instance of a shared one (MIG). CUDA's UUIDs have neither."""
FIGURES = {
    "index": "Index",
    "power_watts": "PowerUsage",
    "power_limit_watts": "EnforcedPowerLimit",
    "throttle_reasons": "CurrentClocksThrottleReasons",
    "link_width": "CurrPcieLinkWidth",
    "link_max_width": "MaxPcieLinkWidth",
    "link_generation": "CurrPcieLinkGeneration",
    "link_max_generation": "MaxPcieLinkGeneration",
}
"""Fields of `DeviceSample`, with the nvmlDeviceGet… function that returns each without further arguments."""
MILLI = "power_watts", "power_limit_watts"
"""Fields that NVML returns in thousandths."""


class ReportedDevices:
    """UUIDs that the processes of a recording report (`DeviceFacts`), as their files grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> set[str]:
        """Returns the UUIDs reported since the last call."""
        return {uuid for path in self._folder.glob(FACTS) for uuid in self._reported(path)}

    def _reported(self, path: Path) -> Iterator[str]:
        """Yields the UUIDs in the new whole lines; a torn line is read again."""
        offset, data = self._read.get(path, 0), b""
        with contextlib.suppress(OSError):
            if path.stat().st_size > offset:
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
        lines = data[: data.rfind(b"\n") + 1]
        self._read[path] = offset + len(lines)
        for line in lines.splitlines():
            if MARK in line:
                with contextlib.suppress(ValueError):
                    fact = decode_fact(line)
                    if isinstance(fact, DeviceFacts) and fact.uuid:
                        yield fact.uuid


class Devices:
    """NVIDIA devices of a job, found by CUDA's UUIDs. Those unknown to NVML (of another host or vendor) are skipped."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._missing = False
        self._handles: dict[str, tuple[str, Any]] = {}

    def add(self, uuids: Iterable[str]) -> None:
        """Adds devices. Loads NVML for the first one."""
        for uuid in uuids:
            if uuid not in self._handles and self._loaded():
                self._handles |= self._found(uuid)

    def known(self, uuids: Iterable[str]) -> bool:
        """True if NVML knows all devices with these UUIDs."""
        return all(uuid in self._handles for uuid in uuids)

    def look(self, pids: frozenset[int]) -> list[dict[str, Any]]:
        """Returns the `DeviceSample` of each device, without unavailable fields. pids: processes of the job."""
        return [{"uuid": name, **self._figures(handle, pids)} for name, handle in self._handles.values()]

    def free_bytes(self) -> int:
        """Returns the least free memory of the devices, bytes; 0 without any, or if one does not answer."""
        memory = [self._ask("MemoryInfo", handle) for _, handle in self._handles.values()]
        return min((int(each.free) if each is not None else 0 for each in memory), default=0)

    def _loaded(self) -> bool:
        """True if NVML is available; tried once."""
        if self._nvml is None and not self._missing:
            self._missing = True
            with contextlib.suppress(ImportError, OSError):
                import pynvml

                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlInit()
                    self._nvml, self._missing = pynvml, False
        return self._nvml is not None

    def _found(self, uuid: str) -> dict[str, tuple[str, Any]]:
        """Returns NVML's name and handle of a device, by its UUID. {} for an unknown device, or one shared in instances
        (MIG): either an instance has the UUID, or the job's instance is unknown."""
        for kind in KINDS:
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByUUID(kind + uuid)
                modes = self._ask("MigMode", handle) if kind == KINDS[0] else None
                return {uuid: (kind + uuid, handle)} if not modes or not modes[0] else {}
        return {}

    def _figures(self, handle: Any, pids: frozenset[int]) -> dict[str, Any]:
        nvml, found = self._nvml, {name: self._ask(call, handle) for name, call in FIGURES.items()}
        memory, utilization = self._ask("MemoryInfo", handle), self._ask("UtilizationRates", handle)
        found |= {name: found[name] / 1000 for name in MILLI if found[name] is not None}
        found |= {
            "utilization": getattr(utilization, "gpu", None),
            "memory_bytes": getattr(memory, "used", None),
            "memory_total_bytes": getattr(memory, "total", None),
            "clock_mhz": self._ask("ClockInfo", handle, nvml.NVML_CLOCK_SM),
            "max_clock_mhz": self._ask("MaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            "other_processes": self._others(handle, pids),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _others(self, handle: Any, pids: frozenset[int]) -> int | None:
        """Returns the number of other jobs' processes that compute on a device. In a container NVML reports the host's
        pids, so it is None unless one of ours is among them."""
        users = self._ask("ComputeRunningProcesses", handle)
        if users is None:
            return None
        numbers = {user.pid for user in users}
        return len(numbers - pids) if pids & numbers or not numbers else None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Returns a single value; None if the device, or the installed NVML, does not have it."""
        ask = getattr(self._nvml, f"nvmlDeviceGet{name}", None)
        with contextlib.suppress(self._nvml.NVMLError):
            return ask(*arguments) if ask is not None else None
        return None


def free_bytes(uuids: Iterable[str]) -> int:
    """Returns the least free memory of these devices, bytes; 0 if one is unknown or does not answer."""
    wanted, devices = tuple(uuids), Devices()
    devices.add(wanted)
    return devices.free_bytes() if devices.known(wanted) else 0
