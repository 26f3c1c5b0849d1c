"""How quickly this machine goes through memory: caches make small tensors quicker than large ones."""

from __future__ import annotations

from steptime.findings.case import MachineUse


def memory_rate(machine: MachineUse | None, size: float) -> float | None:
    """B/s, read and written, of an update in place that goes through so many bytes: as measured for the next larger
    size, or the largest; None where that was not measured (an accelerator, an earlier version's recording)."""
    if machine is None or not machine.updates:
        return None
    return next((rate for each, rate in machine.updates if each >= size), machine.updates[-1][1])
