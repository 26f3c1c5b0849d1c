"""NVML of a machine with eight devices, as nvidia-ml-py gives it: its calls, its constants and its errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml as library

MIB = 1 << 20


def uuid_of(number: int) -> str:
    """As CUDA tells it."""
    return f"{number:x}85e383e-0b55-c127-faa1-fe851da68eda"


@dataclass
class Device:
    """What `nvidia-smi -q` says of an idle H200 (driver 580.159). unsupported: figures that it does not give."""

    number: int
    kind: str = "GPU-"
    gpu: int = 0
    used: int = 0
    total: int = 143_771 * MIB
    clock: int = 345
    reasons: int = library.nvmlClocksEventReasonGpuIdle
    users: tuple[int, ...] = ()
    milliwatts: int = 97_562
    link_width: int = 16
    shared: bool = False
    unsupported: frozenset[str] = field(default_factory=frozenset)


class EightDevices(ModuleType):
    """In place of the module `pynvml`. looked_at: numbers of the devices whose figures were asked for."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.devices = [Device(number) for number in range(8)]
        self.looked_at: set[int] = set()
        self.started = 0
        own = {name: value for name, value in vars(library).items() if name.startswith("NVML")}
        vars(self).update(own)
        for name in figures(self.devices[0]):
            assert hasattr(library, f"nvmlDeviceGet{name}"), "the library has no such call"
            setattr(self, f"nvmlDeviceGet{name}", self._figure(name))

    def nvmlInit(self) -> None:
        """Counts."""
        self.started += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> Device:
        """Raises NVMLError_NotFound, as the library does for one of another machine."""
        wanted = uuid if isinstance(uuid, str) else uuid.decode()
        for device in self.devices:
            if wanted == device.kind + uuid_of(device.number):
                return device
        raise library.NVMLError(library.NVML_ERROR_NOT_FOUND)

    def _figure(self, name: str) -> Callable[..., Any]:
        def ask(device: Device, *arguments: int) -> Any:
            self.looked_at.add(device.number)
            if name in device.unsupported:
                raise library.NVMLError(library.NVML_ERROR_NOT_SUPPORTED)
            if name in ("ClockInfo", "MaxClockInfo"):
                assert arguments == (library.NVML_CLOCK_SM,)
            return figures(device)[name]

        return ask


def figures(device: Device) -> dict[str, Any]:
    """By the end of the call's name."""
    return {
        "Index": device.number,
        "MigMode": [int(device.shared)] * 2,
        "UtilizationRates": SimpleNamespace(gpu=device.gpu, memory=0),
        "MemoryInfo": SimpleNamespace(total=device.total, used=device.used, free=device.total - device.used),
        "ClockInfo": device.clock,
        "MaxClockInfo": 1980,
        "PowerUsage": device.milliwatts,
        "EnforcedPowerLimit": 700_000,
        "CurrentClocksThrottleReasons": device.reasons,
        "ComputeRunningProcesses": [SimpleNamespace(pid=pid, usedGpuMemory=MIB) for pid in device.users],
        "CurrPcieLinkWidth": device.link_width,
        "MaxPcieLinkWidth": 16,
        "CurrPcieLinkGeneration": 5,
        "MaxPcieLinkGeneration": 5,
    }


MIG = frozenset(
    {"UtilizationRates", "ClockInfo", "MaxClockInfo", "PowerUsage", "EnforcedPowerLimit", "Index"}
    | {"CurrentClocksThrottleReasons", "CurrPcieLinkWidth", "MaxPcieLinkWidth"}
    | {"CurrPcieLinkGeneration", "MaxPcieLinkGeneration"}
)
"""Figures that an instance of a shared device does not give; its memory and its processes it does."""
