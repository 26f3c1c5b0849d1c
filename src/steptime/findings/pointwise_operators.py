"""Pointwise operators that a fused one would do in less time."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.findings.case import MachineUse, OperatorUse
from steptime.findings.kernel_kinds import LABORIOUS, POINTWISE, plain_name
from steptime.findings.stakes import ratio

ARITHMETIC = 0.25
"""Of the bandwidth: below it an operator that takes tens of instructions an element waits for its own arithmetic, which
fusing leaves."""


def moving(operators: Iterable[OperatorUse], machine: MachineUse | None) -> list[OperatorUse]:
    """Those of the model that wait for memory. The optimiser's are not the model's.

    The bandwidth is that of a copy, or what the plain ones reach here, where that is less: tensors whose memory is new
    each time are slow to write (4 to 8 GB/s where a copy reached 41), whatever is computed.
    """
    pointwise = [use for use in operators if _is_pointwise(use)]
    reached = _rate([use for use in pointwise if plain_name(use.name) not in LABORIOUS])
    bandwidth = min(filter(None, (machine.copy_bytes if machine is not None else None, reached)), default=0.0)
    return [use for use in pointwise if not _computes(use, bandwidth)]


def _is_pointwise(use: OperatorUse) -> bool:
    return use.bound == "memory" and use.phase != "optimizer" and plain_name(use.name) in POINTWISE


def _computes(use: OperatorUse, bandwidth: float) -> bool:
    """Whether its own arithmetic is what it waits for."""
    return plain_name(use.name) in LABORIOUS and bool(use.bytes) and _rate([use]) < ARITHMETIC * bandwidth


def _rate(operators: list[OperatorUse]) -> float:
    """B/s of those whose bytes are known."""
    known = [use for use in operators if use.bytes]
    return ratio(sum(use.bytes or 0.0 for use in known), sum(use.duration for use in known)) * 1e9
