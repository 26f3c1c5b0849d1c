"""How the gradient norm has grown: over the steps before something was not finite, or over a whole run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from steptime.numerics.numerics import Number, value_of

STEPS = 8
"""So many are told."""
FEWEST = 9
"""Steps of which the first third is compared with the last."""
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


def over_the_run(spread: Sequence[tuple[int, Number, Number]]) -> tuple[tuple[int, Number], ...]:
    """(step, gradient norm) of a few steps of the whole run, the first and the last among them."""
    if len(spread) <= STEPS:
        return growth_of(spread)
    return growth_of([spread[round(place * (len(spread) - 1) / (STEPS - 1))] for place in range(STEPS)])


def divergence(spread: Sequence[tuple[int, Number, Number]]) -> float:
    """How many times the norm has grown from the first third of the run to the last, in the median; 1 where that is
    nothing unusual, or where there are too few steps to tell."""
    norms = [value_of(norm) for _, _, norm in spread]
    third = len(norms) // 3
    if len(norms) < FEWEST:
        return 1.0
    before, after = statistics.median(norms[:third]), statistics.median(norms[-third:])
    return after / before if 0 < before * GREAT_GROWTH <= after else 1.0
