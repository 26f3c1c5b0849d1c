"""The work of the calls of operators, each counted where it is done."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Bool, Float64, Int64
from steptime.kineto.table import Trace
from steptime.ledger.operator_calls import OperatorCalls
from steptime.nesting import ROOT, ancestors
from steptime.work.calls import Modelled, model
from steptime.work.model import Work

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
    own |= ~multiplies & _moved_by_themselves(modelled.bytes, calls.parent, own)
    return Modelled((*modelled.works, Work(0.0, 0.0)), np.where(own, modelled.kind, len(modelled.works)))


def _moved_by_themselves(moved: Float64, parent: Int64, own: Bool) -> Bool:
    """Which calls move more than OWN times what the calls inside them do. Nobody knows that where one inside has no
    model (its bytes are nan). Children stand behind their parents, so one pass from the end will do, however deep they
    are nested."""
    found, amount, around = own.copy(), moved.tolist(), parent.tolist()
    inside = [0.0] * len(amount)
    for call in reversed(np.flatnonzero(~own | (parent != ROOT)).tolist()):
        if not found[call]:
            found[call] = amount[call] > OWN * inside[call]
        if around[call] != ROOT:
            inside[around[call]] += amount[call] if found[call] else inside[call]
    return found
