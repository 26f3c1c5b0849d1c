"""Pointwise operators that a fused one would do in less time."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.findings.case import MachineUse, OperatorUse
from steptime.findings.kernel_kinds import LABORIOUS, POINTWISE, plain_name
from steptime.findings.stakes import ratio

ARITHMETIC = 0.25
"""Of the copy bandwidth: below it an operator that takes tens of instructions an element waits for its own arithmetic,
which fusing leaves."""


def moving(operators: Iterable[OperatorUse], machine: MachineUse | None) -> list[OperatorUse]:
    """Those of the model that wait for memory. The optimiser's are not the model's."""
    bandwidth = machine.copy_bytes if machine is not None else None
    return [use for use in operators if _moves(use, bandwidth)]


def _moves(use: OperatorUse, bandwidth: float | None) -> bool:
    name = plain_name(use.name)
    if use.bound != "memory" or use.phase == "optimizer" or name not in POINTWISE:
        return False
    if name not in LABORIOUS or not bandwidth or not use.bytes:
        return True
    return ratio(use.bytes, use.duration) * 1e9 >= ARITHMETIC * bandwidth
