"""What bounds a piece of work on a machine: the roofline of its ceilings (Williams, Waterman, Patterson 2009)."""

from __future__ import annotations

from steptime.hardware.machine import Machine
from steptime.quantities import Estimate
from steptime.work.model import Work

COMPUTE, MEMORY, LATENCY, UNMODELLED = "compute", "memory", "latency", "unmodelled"


def time_at_ceilings(work: Work | None, machine: Machine | None) -> tuple[float, float] | None:
    """ns of the arithmetic at the rate of a matrix product, and of the bytes at the rate of a copy. None without a
    model or without the ceilings that it needs."""
    if work is None or work.flops is None or machine is None or machine.copy is None:
        return None
    rate = machine.matrix_rate(work.number_format) if work.flops else None
    if work.flops and not rate:
        return None
    arithmetic = work.flops / rate * 1e9 if rate else 0.0
    return arithmetic, work.bytes / machine.copy.value * 1e9


def bound_of(work: Work | None, machine: Machine | None) -> str:
    """What bounds a call: the slower of arithmetic and movement; when both would be done in less time than dispatching
    takes, the call is too small for either to matter."""
    overhead = (machine.launch or machine.dispatch) if machine is not None else None
    return bound_of_times(time_at_ceilings(work, machine), overhead)


def bound_of_times(times: tuple[float, float] | None, overhead: Estimate | None) -> str:
    """From the ns of arithmetic and of movement at the ceilings, and the ns of dispatching, None where unknown."""
    if times is None:
        return UNMODELLED
    if max(times) < overhead.value if overhead is not None else max(times) <= 0:
        return LATENCY
    return COMPUTE if times[0] >= times[1] else MEMORY
