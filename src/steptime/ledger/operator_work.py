"""The work of the calls of operators, each counted where it is done."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steptime.kineto.table import Trace
from steptime.ledger.operator_calls import OperatorCalls
from steptime.nesting import ROOT, ancestors
from steptime.work.calls import Modelled, model
from steptime.work.model import Work

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
OWN = 2
"""Times the bytes of the calls inside: a call that moves more than that moves them itself. A division makes a tensor of
its number with calls of their own, a sum clears its result so; a composite operator moves what its parts move."""


def worked(trace: Trace, calls: OperatorCalls) -> Modelled:
    """Calls of equal arguments are modelled once. A call around others has work of its own only where it multiplies
    matrices and none of those inside does, or where those inside move next to nothing of its bytes: else theirs would
    count twice."""
    modelled = model(trace, calls.rows)
    multiplies = modelled.flops > 0
    outer, repeated = ancestors(calls.parent, np.ones(len(calls.rows), np.bool_)), ancestors(calls.parent, multiplies)
    own = ~outer | (multiplies & ~repeated)
    own |= outer & ~multiplies & _moved_by_themselves(modelled.bytes, calls.parent, own)
    return Modelled((*modelled.works, Work(0.0, 0.0)), np.where(own, modelled.kind, len(modelled.works)))


def _moved_by_themselves(moved: npt.NDArray[np.float64], parent: Int64, own: Bool) -> Bool:
    """Which calls move more than OWN times what the calls inside them do, from the innermost outwards. Nobody knows
    that where one inside has no model."""
    inside, found = np.zeros(len(parent)), own.copy()
    depth = _depth(parent)
    for level in range(int(depth.max(initial=0)), -1, -1):
        at = np.flatnonzero(depth == level)
        found[at] |= moved[at] > OWN * inside[at]
        if level:
            np.add.at(inside, parent[at], np.where(found[at], moved[at], inside[at]))
    return found


def _depth(parent: Int64) -> Int64:
    """How many calls there are around each."""
    depth, around = np.zeros(len(parent), np.int64), parent
    while (around != ROOT).any():
        depth += around != ROOT
        around = np.where(around != ROOT, parent[around], ROOT)
    return depth
