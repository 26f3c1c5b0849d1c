"""Which function of the user's calls an operator, from a trace with Python stacks.

The line timeline of the recording is finer; this reaches deeper.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from steptime.arrays import Int32, Int64
from steptime.kineto.table import Category, Trace
from steptime.ledger.operations import operator_events
from steptime.ledger.threads import autograd_lanes, training_lane
from steptime.links.frames import is_user_file, source_line
from steptime.links.link import link
from steptime.links.links import UNKNOWN, Links
from steptime.quantities import SourceLine

NO_STEPS = np.empty((0, 2), np.int64)


def sources_of(
    trace: Trace,
    links: Links | None = None,
    *,
    training_thread: int | None = None,
    is_user: Callable[[str], bool] | None = None,
) -> dict[str, SourceLine]:
    """By operator name, the user's function that most of its time was called from; empty without stacks.

    What backward runs is traced to its forward operator. links: of the trace, where the caller has them; else they are
    made with is_user, which tells the user's files (as the trace spells them) from libraries.
    """
    lane = training_lane(trace, training_thread)
    if lane is None or not np.any(trace.events.category == Category.PYTHON):
        return {}
    known = links or link(trace, NO_STEPS, is_user=is_user or is_user_file)
    lanes = np.isin(trace.events.lane, (lane, *autograd_lanes(trace, lane)))
    rows = np.flatnonzero(operator_events(trace) & lanes & (known.function != UNKNOWN))
    return _heaviest(trace, rows, trace.events.name[known.function[rows]])


def _heaviest(trace: Trace, rows: Int64, functions: Int32) -> dict[str, SourceLine]:
    """For each operator the function with the most of its time."""
    symbols = len(trace.symbols)
    pairs, pair = np.unique(trace.events.name[rows].astype(np.int64) * symbols + functions, return_inverse=True)
    spent = np.bincount(pair, trace.events.duration[rows], len(pairs))
    found: dict[str, SourceLine] = {}
    for index in np.argsort(spent, kind="stable").tolist():
        name, function = divmod(int(pairs[index]), symbols)
        source = source_line(trace.symbols[function])
        if source is not None:
            found[trace.symbols[name]] = source
    return found
