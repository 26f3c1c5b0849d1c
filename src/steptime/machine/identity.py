"""Identity of this machine, from its operating system and drivers."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Device according to NVIDIA's management library. memory: bytes."""

    name: str
    memory: int
    driver: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a machine, without its peaks. usable_cpus: number that this process may use; memory: bytes."""

    host: str
    system: str
    processor: str
    logical_cpus: int
    usable_cpus: int
    memory: int
    accelerators: tuple[Accelerator, ...] = ()


def identify() -> Identity:
    """Identity of this machine, in milliseconds and without torch."""
    import psutil  # most who ask for the CPUs need none of it

    return Identity(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        processor=processor_name(),
        logical_cpus=os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        memory=psutil.virtual_memory().total,
        accelerators=_accelerators(),
    )


def usable_cpus() -> int:
    """Number of CPUs on which the scheduler may run this process. It ignores a container's quota of CPU time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """Processor model as the kernel prints it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, "") or platform.processor() or platform.machine()


def _accelerators() -> tuple[Accelerator, ...]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()  # no NVIDIA driver here
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            Accelerator(pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle).total, driver)
            for handle in handles
        )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()
