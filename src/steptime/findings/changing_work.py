"""Whether the model computes something else in every step: tensors of other shapes, or more and fewer operators."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import Intervals, contains
from steptime.kineto.table import Trace
from steptime.ledger.operations import operator_events

OTHER = 0.1
"""Of the operators of two steps: where more have no match, by name and shapes, the steps are taken for different. Of
equal steps none has; a metric that is computed now and then is a few."""


def changing_work(trace: Trace, borders: Int64, forward: Intervals) -> bool | None:
    """Whether most steps run other operators in their forward than the one before; None where there are fewer than two
    to compare. borders: (n, 2) ns. forward: when the model ran, on the trace's clock."""
    events = trace.events
    chosen = operator_events(trace) & contains(forward, events.begin)
    rows = [np.flatnonzero(chosen & (events.begin >= begin) & (events.begin < end)) for begin, end in borders.tolist()]
    steps = [Counter(zip(events.name[each].tolist(), events.shapes[each].tolist(), strict=True)) for each in rows]
    differ = [_differ(*pair) for pair in itertools.pairwise(steps)]
    return 2 * sum(differ) > len(differ) if differ else None


def _differ(one: Counter[tuple[int, int]], other: Counter[tuple[int, int]]) -> bool:
    without = (one - other).total() + (other - one).total()
    return without > OTHER * (one.total() + other.total())
