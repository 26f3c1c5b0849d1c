"""What filling gradients with zeros costs: the filling itself, and adding to the zeros in backward."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.findings.case import AccountUse, OperatorUse
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.operator_time import profile_scale

FILLING = frozenset({"fill", "zero", "_foreach_zero"})
"""Operators below zero_grad(set_to_none=False); zero_ of a tensor calls fill_."""
INSIDE = frozenset({"forward", "backward", "input"})
"""Phases whose zeros are the model's, autograd's or the batch's own."""
BYTES = 4.0
"""Of an element of a gradient: those in half precision are not found, which errs on the safe side."""
MOST_OF_THEM = 0.8
"""Of the parameters' bytes must be filled: what an optimiser or a metric fills besides is small."""


def zeroing(
    operators: Sequence[OperatorUse], accounts: Sequence[AccountUse], elements: int, micro_batches: float
) -> tuple[float, float]:
    """(ns a step to fill gradients with zeros, ns a step to add to them in backward); (0, 0) where the operators
    outside of forward and backward do not fill as many bytes as the gradients of so many elements have.

    Over several backwards gradients are added anyway: then only the filling counts.
    """
    filling = [use for use in operators if plain_name(use.name) in FILLING and use.phase not in INSIDE]
    if not elements or sum(use.bytes or 0.0 for use in filling) < MOST_OF_THEM * BYTES * elements:
        return 0.0, 0.0
    scale = profile_scale(operators, accounts)
    filled = sum(use.calls for use in filling)
    adding = [use for use in operators if plain_name(use.name) == "add" and use.phase == "backward"]
    added = sum(use.duration for use in adding) if micro_batches < 1.5 else 0.0
    share = min(1.0, filled / max(filled, sum(use.calls for use in adding)))
    return scale * sum(use.duration for use in filling), scale * added * share
