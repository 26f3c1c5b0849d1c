"""What differs between two runs of one job though nothing changed, and what is left of a difference beyond it.

A single run knows how its steps vary, and nothing of what another run would give: another place in memory, other
neighbours on the machine, another temperature. So each interval of a difference has two parts: what varies within the
runs, drift included (`estimates.difference_of_series`), and a floor for what varies between them. They are independent
and add as variances do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from steptime.comparison.comparison import Noise, Outcome
from steptime.estimates import BETWEEN_RUNS
from steptime.quantities import Estimate, format_share

LEAST_FLOOR = 0.005
"""Clocks, temperature and the layout of memory move a step by this much, however alike a few runs happened to be."""
PART = 0.005
"""Of the step: the floor of an account is that of its own time, and at least this much: what a border between accounts
can shift."""
WIDEST = 0.1
"""Relative: an interval that reaches further than this from no difference cannot say that there is none."""
FOR_MEASURED = 3
"""Runs of one job from which on their differences say more than the assumed floor."""


def assumed_noise(floor: float = BETWEEN_RUNS) -> Noise:
    """The floor where only one run of each side is there."""
    sentence = (
        f"One run of each says nothing of what another run would give: {format_share(floor)} of a step is allowed for "
        "that. Give further runs of the first job with --repeat to measure it."
    )
    return Noise(floor, False, sentence)


def measured_noise(steps: Sequence[float], floor: float = BETWEEN_RUNS) -> Noise:
    """The floor from repeated runs of the first job: the largest difference between two of them. Two runs may be alike
    by chance: with fewer than FOR_MEASURED the assumed floor stays the least. steps: ns."""
    if len(steps) < 2:
        return assumed_noise(floor)
    spread = max(steps) / min(steps) - 1
    least = LEAST_FLOOR if len(steps) >= FOR_MEASURED else floor
    sentence = (
        f"{len(steps)} runs of the first job differ by up to {format_share(spread)} though nothing changed: "
        f"{format_share(max(spread, least))} of a step is allowed for that."
    )
    return Noise(max(spread, least), True, sentence)


def beyond(change: Estimate, floor: float) -> Estimate:
    """The change with the noise between runs in its interval. floor: in its unit."""
    low = sqrt((change.value - change.low) ** 2 + floor**2)
    high = sqrt((change.high - change.value) ** 2 + floor**2)
    return Estimate(change.value, change.value - low, change.value + high, change.samples, change.unit)


def outcome_of(change: Estimate, scale: float, widest: float = WIDEST) -> Outcome:
    """What an interval says. scale: what a relative difference is taken of; widest: relative, how far an interval may
    reach that still rules out a difference."""
    if change.low > 0:
        return Outcome.MORE
    if change.high < 0:
        return Outcome.LESS
    reach = max(-change.low, change.high)
    return Outcome.NONE if reach <= widest * scale else Outcome.UNDECIDED
