"""Pointwise operators that a fused one would do in less time."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.findings.case import OperatorUse
from steptime.findings.kernel_kinds import POINTWISE, plain_name


def moving(operators: Iterable[OperatorUse]) -> list[OperatorUse]:
    """Those of the model that wait for memory. The optimiser's are not the model's."""
    waiting = [use for use in operators if use.bound == "memory" and use.phase != "optimizer"]
    return [use for use in waiting if plain_name(use.name) in POINTWISE]
