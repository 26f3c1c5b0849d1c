"""A case from a bare trace: what a file of torch's profiler says without a recording beside it.

Its steps were all profiled, so its times hold for the profiled job; what only the watch knows (loader internals, lines,
settings, other load) is not in the case, and the rules that need it say so.
"""

from __future__ import annotations

import numpy as np

from steptime.estimates import mean_of_series
from steptime.findings.case import AccountUse, Case, MachineUse, OperatorUse, RecomputeUse, StepSummary
from steptime.findings.stakes import scaled
from steptime.findings.step_uses import waste
from steptime.hardware.machine import Machine
from steptime.kineto.table import Trace
from steptime.ledger.account import account_for, device_of
from steptime.ledger.ledger import Account, Int64, Ledger
from steptime.ledger.operators import OperatorTotal, total
from steptime.ledger.recompute import recomputed
from steptime.ledger.source_lines import sources_of

WARM_UP = 1.5
"""A first step this much longer than the median of the others is the profiler's or the job's start."""


def case_of_trace(trace: Trace, borders: Int64, machine: Machine | None = None) -> Case:
    """The case of the steps of a trace. borders: (n, 2) ns, n at least 1."""
    warm_up = _warm_up(borders[:, 1] - borders[:, 0])
    steady = borders[warm_up:]
    ledger = account_for(trace, steady, machine=machine)
    operators = total(trace, steady, machine, sources=sources_of(trace))
    duration = mean_of_series(ledger.wall)
    again = recomputed(trace, steady)
    return Case(
        step=StepSummary(duration, len(borders), len(steady), warm_up, "trace", _kind(trace)),
        accounts=accounts_of(ledger, waste(operators, machine)),
        operators=tuple(map(operator_use, operators)),
        machine=machine_use(machine),
        recompute=RecomputeUse(mean_of_series(again)) if again.any() else None,
    )


def accounts_of(ledger: Ledger, recoverable_compute: float) -> tuple[AccountUse, ...]:
    """The accounts per step; they sum to the step. recoverable_compute: share of computing above the roofline; of
    unexplained time nothing can be given back, of the other accounts all."""
    uses = []
    for account in Account:
        duration = mean_of_series(ledger.entries[:, account])
        part = {Account.COMPUTE: recoverable_compute, Account.UNEXPLAINED: 0.0}.get(account, 1.0)
        uses.append(AccountUse(account.name.lower(), duration, scaled(duration, part)))
    return tuple(use for use in uses if use.duration.value > 0)


def machine_use(machine: Machine | None) -> MachineUse | None:
    """The ceilings as rules see them."""
    if machine is None:
        return None
    dispatch = machine.launch or machine.dispatch
    return MachineUse(
        machine.name,
        machine.measured,
        machine.matrix_rate(),
        machine.copy.value if machine.copy is not None else None,
        dispatch.value if dispatch is not None else None,
    )


def _warm_up(durations: Int64) -> int:
    return int(len(durations) > 2 and durations[0] > WARM_UP * np.median(durations[1:]))


def _kind(trace: Trace) -> str:
    return "cpu" if device_of(trace) == "cpu" else "cuda"


def operator_use(operator: OperatorTotal) -> OperatorUse:
    """An operator as rules see it."""
    return OperatorUse(
        operator.name,
        operator.calls,
        operator.duration,
        operator.bound,
        operator.phase,
        operator.flops,
        operator.bytes,
        operator.source,
    )
