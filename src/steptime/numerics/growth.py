"""How the gradient norm has grown over the steps before something was not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

from steptime.numerics.numerics import Number, value_of

STEPS = 8
"""The last steps that are told."""
GREAT_GROWTH = 100.0
"""A gradient norm so many times that of a few steps before is exploding: norms of a training that goes well vary by a
factor of a few from batch to batch."""


def growth_of(history: Sequence[tuple[int, Number, Number]]) -> tuple[tuple[int, Number], ...]:
    """(step, gradient norm) of the last steps that have one."""
    return tuple((step, norm) for step, _, norm in history if norm is not None)[-STEPS:]


def growth_factor(growth: Sequence[tuple[int, Number]]) -> float:
    """The last norm over the least one; 1 where there are no two."""
    norms = [value_of(norm) for _, norm in growth]
    finite = [norm for norm in norms if math.isfinite(norm) and norm > 0]
    if len(finite) < 2:
        return 1.0
    return finite[-1] / min(finite)
