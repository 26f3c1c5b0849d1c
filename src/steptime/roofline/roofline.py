"""A roofline: what the kernels of a step reached, against what the machine could. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.arrays import Int64
from steptime.hardware.machine import Machine

COMMUNICATION = "communication"
"""The bound of a kernel that moves data between devices; the others are those of `work.bounds`."""


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels of one name that one operator launched with arguments of one kind; on a CPU, calls of the operator.

    name: of the kernel (on a CPU, the operator's). shapes, types: raw JSON, "" where the trace has none.
    calls, duration: per step, ns. bound: "compute", "memory", "latency", "communication" or "unmodelled".
    flops, bytes: per step, None without a model. at_roofline: ns per step at the machine's ceilings, never above the
    duration (what is faster had its data in a cache); None without a model or ceilings. matrix_unit: None where the
    name does not say. dimensions: sides of a product that miss the matrix units' tile.
    example: the longest of them, a row of the event table.
    """

    name: str
    operator: str
    shapes: str
    types: str
    number_format: str
    calls: float
    duration: float
    bound: str
    flops: float | None
    bytes: float | None
    at_roofline: float | None
    matrix_unit: bool | None
    dimensions: tuple[str, ...]
    example: int


@dataclass(frozen=True, slots=True)
class Roofline:
    """All groups, the longest first, and what they add up to.

    bounds: names of the columns of split, (n steps, len(bounds)) ns: the compute account of each step by what bounds
    it; a row sums to that account of the ledger, to the nanosecond. Where kernels overlap, the earlier column has the
    time.
    flops, bytes: per step, of what has a model. wall: ns of a step, mean. busy: ns of computing per step.
    number_format: the one with most of the FLOPs ("" without any); peak: the ceiling of a matrix product in it, FLOP/s.
    utilization: the time that the FLOPs would take at the peaks of their formats, over the wall clock (MFU). None
    without ceilings or where a format has none.
    modelled: share of the computing time of kernels that have a model, 0 to 1.
    """

    machine: Machine | None
    groups: tuple[KernelGroup, ...]
    bounds: tuple[str, ...]
    split: Int64
    wall: float
    busy: float
    flops: float
    bytes: float
    number_format: str
    peak: float | None
    utilization: float | None
    modelled: float

    @property
    def matrix_unit(self) -> float | None:
        """Share of the time of matrix products on matrix units, of those whose names say; None where none does."""
        told = [group for group in self.groups if group.flops and group.matrix_unit is not None]
        spent = sum(group.duration for group in told)
        return sum(group.duration for group in told if group.matrix_unit) / spent if spent else None
