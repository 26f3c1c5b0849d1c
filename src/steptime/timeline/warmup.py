"""How many of the first steps are warm-up.

One law: the first step always is; more are only where they were compiled in or where leaving them out makes the mean
of the others surer; and what lasts longer than a quarter of the run is no warm-up but how the job runs.
"""

from __future__ import annotations

import numpy as np

from steptime.arrays import Bool, Float64, Int64

LEAST = 3
"""Undisturbed steps in the later half that are needed to call others slower than them."""
LONGEST, SHORT = 4, 3
"""A warm-up is at most one step in LONGEST, or SHORT steps. Hoad, Robinson and Davies (below) take a truncation beyond
half of the series for a sign that it never settled; a single run that slows down for another reason looks the same."""
TOLERANCE = 0.02
"""A difference of 2 % is none, however quiet the machine."""
DEVIATIONS = 3.0
"""Beyond so many standard deviations from what is usual a step counts as no further away: one stall of a second must
not outweigh a hundred steps."""
NORMAL = 1.4826
"""Median absolute deviation of a normal distribution to its standard deviation."""
BURST = 2
"""Compilations at most so many steps apart belong to the same start: forward, backward and the second shape."""


def find_warm_up(work: Int64, usable: Bool, compiled: Bool) -> tuple[int, str]:
    """(steps to leave out, reason). work: the steps without their wait for input, which has a start of its own and is
    what is often looked for. usable: steps that nothing disturbed. compiled: steps with a compilation."""
    count = len(work)
    if count < 2:
        return count, "a single step is all warm-up" if count else "no step was found"
    most = min(max(SHORT, count // LONGEST), count // 2)
    known = _first_burst(compiled, most)
    slow = _slow_steps(work, usable, most)
    if slow > max(1, known):
        return slow, f"the first {slow} steps were slower than the rest"
    if known > 1:
        return known, f"in the first {known} steps code was compiled"
    return 1, "the first step always counts as warm-up"


def _first_burst(compiled: Bool, most: int) -> int:
    """One more than the index of the last step of the first compilations; 0 for none."""
    found = np.flatnonzero(compiled[:most])
    if not len(found):
        return 0
    apart = np.flatnonzero(np.diff(found) > BURST)
    return int(found[apart[0] if len(apart) else -1]) + 1


def _slow_steps(work: Int64, usable: Bool, most: int) -> int:
    """Steps at the start that are slower than the others; 1 where none but the first is to be left out."""
    half = len(work) // 2
    later = work[half:][usable[half:]]
    if len(later) < LEAST:
        return 1
    usual = float(np.median(later))
    noise = NORMAL * float(np.median(np.abs(later - usual)))
    reach = max(DEVIATIONS * noise, TOLERANCE * usual)
    first = _truncation(np.clip(work, usual - reach, usual + reach), usable, most)
    return first if _is_a_start(work[1:first][usable[1:first]], work[first:][usable[first:]]) else 1


def _truncation(values: Float64, usable: Bool, most: int) -> int:
    """Where to cut a series, from 1 to `most`, so that the standard error of the mean of the rest is least.

    This is MSER (White, An effective truncation heuristic for bias reduction in simulation output, Simulation 69, 1997;
    compared with others by Hoad, Robinson and Davies, Automating warm-up length estimation, Journal of the Operational
    Research Society 61, 2010), without batches, for warm-ups are often shorter than a batch. An unusable step counts as
    one that is spread like the later half.
    """
    count = len(values)
    known = np.where(usable, values - values[usable].mean(), 0.0)
    left = np.cumsum(usable[::-1])[::-1]
    squares = np.cumsum((known * known)[::-1])[::-1] - np.cumsum(known[::-1])[::-1] ** 2 / np.maximum(1, left)
    half = count // 2
    typical = float(values[half:][usable[half:]].var())
    length = count - np.arange(count)
    error = (squares + (length - left) * typical) / length**2
    return int(np.argmin(error[1 : most + 1])) + 1


def _is_a_start(head: Int64, tail: Int64) -> bool:
    """True if the head is slower than the tail and most of that is over where it ends: a drift goes on, and so does
    what slows the job for another reason."""
    if not len(head):
        return False
    usual = float(np.median(tail))
    fall = float(np.mean(head)) - usual
    after = float(np.median(tail[: max(3, len(head) // 2)])) - usual
    return fall > TOLERANCE * usual and fall > 2 * after
