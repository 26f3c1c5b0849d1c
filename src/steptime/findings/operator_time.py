"""Operators' times on the scale of the steady steps.

One law: the profile tells shares, the watch tells times. A profiled step is slower than the steps that the user waits
for, so what operators took in it is scaled down to what the ledger of the steady steps has for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from steptime.findings.case import AccountUse, MachineUse, OperatorUse
from steptime.findings.memory_rate import memory_rate
from steptime.findings.stakes import ratio

AT_WORK = ("compute", "communication", "copy", "launch")
"""Accounts that hold the time inside operators (small ones count as launch on a CPU)."""


def profile_scale(operators: Iterable[OperatorUse], accounts: Iterable[AccountUse]) -> float:
    """What a profiled nanosecond inside operators is in a steady step: at most 1; 1 without accounts."""
    profiled = sum(use.duration for use in operators)
    steady = _at_work(accounts)
    return min(1.0, ratio(steady, profiled)) if steady > 0 and profiled > 0 else 1.0


def steady_time(
    chosen: Iterable[OperatorUse],
    operators: Sequence[OperatorUse],
    accounts: Sequence[AccountUse],
    machine: MachineUse | None,
) -> float:
    """ns that the chosen ones of all operators take in a steady step.

    Nothing is scaled below its roofline (Williams, Waterman and Patterson, Communications of the ACM 52, 2009), where
    the machine's rates are measured: what a profiled step takes longer lies above it. By hand (torch 2.13, two
    processors) operators that write large new tensors took two to four times as long while they were profiled, matrix
    products a tenth.
    """
    profiled = sum(use.duration for use in operators)
    steady = _at_work(accounts)
    if not 0 < steady < profiled:
        return sum(use.duration for use in chosen)
    least = sum(_roofline(use, machine) for use in operators)
    if steady <= least:
        return sum(_roofline(use, machine) for use in chosen) * steady / least
    scale = (steady - least) / (profiled - least)
    return sum(_roofline(use, machine) + scale * (use.duration - _roofline(use, machine)) for use in chosen)


def _at_work(accounts: Iterable[AccountUse]) -> float:
    return sum(account.duration.value for account in accounts if account.name in AT_WORK)


def _roofline(use: OperatorUse, machine: MachineUse | None) -> float:
    """ns that an operator takes at least, by its arithmetic and by its bytes; 0 where that is not known, and never more
    than it took."""
    rate = memory_rate(machine, ratio(use.bytes or 0.0, use.calls))
    if machine is None or rate is None:
        return 0.0
    least = max(ratio(use.flops or 0.0, machine.matrix_flops or 0.0), ratio(use.bytes or 0.0, rate)) * 1e9
    return min(least, use.duration)
