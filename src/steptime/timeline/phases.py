"""The phases of each step.

One law: each instant of a step goes to the first of these that holds it: a segment (and is subtracted), the training
loader, an update inside a backward, a backward, a forward, an update; what remains is REST. So rows sum exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import Intervals, claim, join
from steptime.journal import Flag, Kind
from steptime.timeline.activity import Activity
from steptime.timeline.borders import UPDATES
from steptime.timeline.lane import Lane, merge
from steptime.timeline.segments import Claims
from steptime.timeline.timeline import Phase


@dataclass(frozen=True, slots=True)
class Work:
    """What the training thread was in. updates: closures hoisted out (see `_updates`). Sets of instants.

    top: the same as disjoint intervals in time order, kinds LOADER_NEXT, FORWARD, BACKWARD and OPTIMIZER_STEP: the
    gaps between them are what is not instrumented.
    """

    loader: Intervals
    forward: Intervals
    backward: Intervals
    updates: Intervals
    updates_in_backward: Intervals
    top: Lane


def find_work(lane: Lane, activity: Activity, starts: Intervals) -> Work:
    """The instrumented parts of the training thread. starts: of the training loader, where they belong to the steps."""
    asked = lane.of(Kind.LOADER_NEXT)
    asked = asked.where(np.isin(asked.identity, activity.training_loaders))
    backward = lane.of(Kind.BACKWARD).outermost()
    updates = lane.of(*UPDATES).outermost()
    in_backward = updates.inside(backward)
    hoisted = _hoisted(updates.where(~in_backward), backward)
    zeroing = lane.of(Kind.ZERO_GRAD)
    outside = merge(hoisted, zeroing.where(~zeroing.inside(backward)))
    return Work(
        loader=join(asked.intervals, starts),
        forward=activity.forwards.intervals,
        backward=backward.intervals,
        updates=outside.intervals,
        updates_in_backward=updates.where(in_backward).intervals,
        top=merge(asked, activity.forwards, backward, outside).outermost(),
    )


def split(begin: Int64, end: Int64, claims: Claims, work: Work) -> tuple[Int64, Int64]:
    """(duration, phases) of the steps [begin, end); see `timeline.Steps`."""
    order = (claims.all, work.loader, work.updates_in_backward, work.backward, work.forward, work.updates)
    columns = claim(begin, end, order)
    phases = np.zeros((len(begin), len(Phase)), np.int64)
    phases[:, Phase.INPUT] = columns[:, 1]
    phases[:, Phase.OPTIMIZER] = columns[:, 2] + columns[:, 5]
    phases[:, Phase.BACKWARD] = columns[:, 3]
    phases[:, Phase.FORWARD] = columns[:, 4]
    phases[:, Phase.REST] = columns[:, 6]
    return end - begin - columns[:, 0], phases


def _hoisted(updates: Lane, backward: Lane) -> Lane:
    """Updates with a closure of exactly one backward (Lightning) begin when that backward has ended: what stands before
    is the step's own code. With more (LBFGS) the closure is the optimiser's own doing."""
    full = backward.where(~backward.flagged(Flag.PARTIAL))
    first = np.searchsorted(full.begin, updates.begin)
    one = np.searchsorted(full.begin, updates.end) - first == 1
    begin = updates.begin.copy()
    begin[one] = full.end[first[one]]
    return Lane(updates.kind, updates.flags, updates.identity, np.minimum(begin, updates.end), updates.end)
