"""The NVIDIA devices that a job works on, each by itself, through the driver's management library (NVML).

One law: only devices count on which the job's processes say that they have a context. A machine of eight devices is
seldom the job's alone, and what a stranger's device does is none of the job's.
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
"""In a line of a process that tells of a device, as the probe writes it."""
KINDS = "GPU-", "MIG-"
"""Before a UUID in NVML, of a device and of an instance of one that is shared (MIG). CUDA tells neither."""
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
"""Fields of `DeviceSample` by what nvmlDeviceGet… is called that gives them without further arguments."""
MILLI = "power_watts", "power_limit_watts"
"""NVML gives them in thousandths."""


class ReportedDevices:
    """UUIDs that the processes of a recording have told (`DeviceFacts`), as their files grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> set[str]:
        """Those that were told since the last time."""
        return {uuid for path in self._folder.glob(FACTS) for uuid in self._reported(path)}

    def _reported(self, path: Path) -> Iterator[str]:
        """UUIDs in the whole lines that have come; a torn one comes again."""
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
    """Devices by their UUIDs, as CUDA tells them. Those unknown to NVML (of another host or vendor) are passed over."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._missing = False
        self._handles: dict[str, tuple[str, Any]] = {}

    def add(self, uuids: Iterable[str]) -> None:
        """Further ones. NVML is loaded for the first."""
        for uuid in uuids:
            if uuid not in self._handles and self._loaded():
                self._handles |= self._found(uuid)

    def known(self, uuids: Iterable[str]) -> bool:
        """True if NVML has all of these."""
        return all(uuid in self._handles for uuid in uuids)

    def look(self, pids: frozenset[int]) -> list[dict[str, Any]]:
        """`DeviceSample` of each, without what it does not tell. pids: of the job."""
        return [{"uuid": name, **self._figures(handle, pids)} for name, handle in self._handles.values()]

    def free_bytes(self) -> int:
        """Free memory on the device that has the least; 0 where one does not answer, and without any."""
        memory = [self._ask("MemoryInfo", handle) for _, handle in self._handles.values()]
        return min((int(each.free) if each is not None else 0 for each in memory), default=0)

    def _loaded(self) -> bool:
        """True if NVML is there; asked once."""
        if self._nvml is None and not self._missing:
            self._missing = True
            with contextlib.suppress(ImportError, OSError):
                import pynvml

                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlInit()
                    self._nvml, self._missing = pynvml, False
        return self._nvml is not None

    def _found(self, uuid: str) -> dict[str, tuple[str, Any]]:
        """By the UUID, what NVML calls the device and its handle; {} where it knows none, and of a device that is
        shared in instances (MIG): one of these has the UUID, or nobody knows which is the job's."""
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
        """How many processes of others compute on a device. In a container NVML gives the host's process numbers:
        strangers can be told only where ours are known."""
        users = self._ask("ComputeRunningProcesses", handle)
        if users is None:
            return None
        numbers = {user.pid for user in users}
        return len(numbers - pids) if pids & numbers or not numbers else None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None where the device does not tell it, or the installed NVML has no such call: each figure by itself."""
        ask = getattr(self._nvml, f"nvmlDeviceGet{name}", None)
        with contextlib.suppress(self._nvml.NVMLError):
            return ask(*arguments) if ask is not None else None
        return None


def free_bytes(uuids: Iterable[str]) -> int:
    """Free memory on the one of these devices that has the least; 0 where one is not known or does not answer."""
    wanted, devices = tuple(uuids), Devices()
    devices.add(wanted)
    return devices.free_bytes() if devices.known(wanted) else 0
