"""Partners by a number that both carry: the latest event with it before a given time."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Int64
from steptime.links.links import UNKNOWN

SPREAD = 8
"""Numbers are looked up in a table when their range is no wider than this many times their count."""


def latest_before(keys: Int64, times: Int64, wanted: Int64, moments: Int64, *, later: bool) -> Int64:
    """For each wanted number the position of the latest candidate that has it at or before its moment; without one that
    early, if `later` will do, the earliest that has it; else UNKNOWN.

    keys, times: of the candidates, in any order. Numbers are nearly always unique up to the moment, so the last
    candidate of each is tried first and only what that does not answer is sorted out.
    """
    order = np.argsort(times, kind="stable")
    found = _last_with(keys[order], wanted)
    found = np.where(found == UNKNOWN, UNKNOWN, order[found]) if len(order) else found
    late = np.flatnonzero((found != UNKNOWN) & (times[found] > moments)) if len(order) else np.empty(0, np.int64)
    if len(late):
        among = np.flatnonzero(np.isin(keys, wanted[late]))
        found[late] = among[_merged(keys[among], times[among], wanted[late], moments[late])]
        if not later:
            found[late[times[found[late]] > moments[late]]] = UNKNOWN
    return found


def _last_with(keys: Int64, wanted: Int64) -> Int64:
    """The last position of each wanted number among the keys, UNKNOWN where it is not."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), UNKNOWN, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low <= SPREAD * (len(keys) + len(wanted)) + 1024:
        table = np.full(high - low + 1, UNKNOWN, np.int64)
        table[keys.astype(np.int64) - low] = np.arange(len(keys))
        inside = (wanted >= low) & (wanted <= high)
        return np.where(inside, table[np.where(inside, wanted.astype(np.int64) - low, 0)], UNKNOWN)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    hit = (at >= 0) & (keys[order][np.maximum(at, 0)] == wanted)
    return np.where(hit, order[np.maximum(at, 0)], UNKNOWN)


def _merged(keys: Int64, times: Int64, wanted: Int64, moments: Int64) -> Int64:
    """The rule of `latest_before` for numbers that all exist among the keys, by sorting both together."""
    both = np.concatenate((keys, wanted))
    is_wanted = np.arange(len(both)) >= len(keys)
    order = np.lexsort((is_wanted, np.concatenate((times, moments)), both))
    position = np.arange(len(order))
    candidate = ~is_wanted[order]
    before = np.maximum.accumulate(np.where(candidate, position, UNKNOWN))
    after = np.minimum.accumulate(np.where(candidate, position, len(order))[::-1])[::-1]
    same = (before != UNKNOWN) & (both[order[np.maximum(before, 0)]] == both[order])
    chosen = order[np.where(same, before, np.minimum(after, len(order) - 1))]
    found = np.empty(len(order), np.int64)
    found[order] = chosen
    return found[len(keys) :]
