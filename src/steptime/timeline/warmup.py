"""How many of the first steps are warm-up.

One law: the first step always is, at most a third of the steps are, and the reason is said in words.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from steptime.timeline.lane import Bool, Int64

WINDOW = 5
"""Steps whose median must be as usual: one slow step among usual ones is noise, not warm-up."""
TOLERANCE = 0.02
"""A median that is 2 % slower than later is as usual, however quiet the machine."""
DEVIATIONS = 3.0
"""Of the median of WINDOW steps, estimated from the median absolute deviation of the later half."""
NORMAL = 1.4826
"""Median absolute deviation of a normal distribution to its standard deviation."""


def find_warm_up(duration: Int64, usable: Bool, known_until: int) -> tuple[int, str]:
    """(steps to leave out, reason). usable: steps that nothing disturbed. known_until: steps at the start in which
    something is known to warm up (a compilation, roots not yet found)."""
    count = len(duration)
    if count < 2:
        return count, "a single step is all warm-up" if count else "no step was found"
    most = max(1, count // 3)
    slow = _slow_steps(duration, usable, most)
    if slow >= most and slow > 1:
        return slow, f"the first {slow} steps, a third of all: their times had not settled by then"
    if slow > max(1, known_until):
        return slow, f"the first {slow} steps were slower than the rest"
    if known_until > 1:
        known = min(known_until, most)
        return known, f"in the first {known} steps code was compiled or the model was looked for"
    return 1, "the first step always counts as warm-up"


def _slow_steps(duration: Int64, usable: Bool, most: int) -> int:
    """The first index from which the running median lies within the noise of the later half; at least 1."""
    index = np.flatnonzero(usable)
    later = duration[index[index >= len(duration) // 2]]
    if len(later) < WINDOW:
        return 1
    usual = float(np.median(later))
    noise = NORMAL * float(np.median(np.abs(later - usual)))
    limit = usual + max(DEVIATIONS * noise / WINDOW**0.5, TOLERANCE * usual)
    single = usual + max(DEVIATIONS * noise, TOLERANCE * usual)
    running = np.median(sliding_window_view(duration[index], WINDOW), axis=1)
    settled = int(np.argmax(running <= limit)) if (running <= limit).any() else len(index)
    while settled < len(index) and duration[index[settled]] > single:  # a slow rest at the window's beginning
        settled += 1
    first = int(index[settled - 1]) + 1 if settled else 1
    return max(1, min(first, most))
