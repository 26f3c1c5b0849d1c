"""The work of the calls of operators, each counted where it is done."""

from __future__ import annotations

import numpy as np

from steptime.kineto.table import Trace
from steptime.ledger.operator_calls import OperatorCalls
from steptime.nesting import ancestors
from steptime.work.calls import Modelled, model
from steptime.work.model import Work


def worked(trace: Trace, calls: OperatorCalls) -> Modelled:
    """Calls of equal arguments are modelled once. A call around others has work of its own only where it multiplies
    matrices and none of those inside does: else theirs would count twice."""
    modelled = model(trace, calls.rows)
    multiplies = modelled.flops > 0
    outer, repeated = ancestors(calls.parent, np.ones(len(calls.rows), np.bool_)), ancestors(calls.parent, multiplies)
    nothing = outer & ~(multiplies & ~repeated)
    return Modelled((*modelled.works, Work(0.0, 0.0)), np.where(nothing, len(modelled.works), modelled.kind))
