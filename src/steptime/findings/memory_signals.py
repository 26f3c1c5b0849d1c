"""Signals of memory. Bytes, unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import Estimate, SourceLine


@dataclass(frozen=True, slots=True)
class KeeperUse:
    """Something in Python that grew with every step that was looked at. kind: "list", "variable", "closure", "hook", …;
    tensors, bytes: per step. graph: with what autograd saved for them."""

    kind: str
    name: str
    tensors: float
    bytes: float
    graph: bool = False
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a process. peak: the most that was held: reserved on a device, resident on a CPU. allocated_peak:
    of tensors on a device. capacity: of the device or of the machine. retries: of the allocator, per steady step; None
    on a CPU. growth: per step, `grows` where it is beyond doubt, `grown` in all. optimizer_state: by the optimisers'
    types and their elements."""

    device: str
    peak: int
    capacity: int | None = None
    allocated_peak: int | None = None
    retries: float | None = None
    growth: Estimate | None = None
    grows: bool = False
    grown: int = 0
    optimizer_state: int = 0
    keepers: tuple[KeeperUse, ...] = ()
