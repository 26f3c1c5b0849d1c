"""Operators' times on the scale of the steady steps.

One law: the profile tells shares, the watch tells times. A profiled step is slower than the steps that the user waits
for, so what operators took in it is scaled down to what the ledger of the steady steps has for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from steptime.findings.case import AccountUse, OperatorUse
from steptime.findings.stakes import ratio

AT_WORK = ("compute", "communication", "copy", "launch")
"""Accounts that hold the time inside operators (small ones count as launch on a CPU)."""


def profile_scale(operators: Iterable[OperatorUse], accounts: Iterable[AccountUse]) -> float:
    """What a profiled nanosecond inside operators is in a steady step: at most 1; 1 without accounts."""
    profiled = sum(use.duration for use in operators)
    steady = sum(account.duration.value for account in accounts if account.name in AT_WORK)
    return min(1.0, ratio(steady, profiled)) if steady > 0 and profiled > 0 else 1.0
