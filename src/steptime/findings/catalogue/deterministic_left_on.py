"""ST603: deterministic algorithms are on."""

from __future__ import annotations

from steptime.findings.case import OperatorUse, Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.operator_time import profile_scale
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import Estimate, format_duration, format_share

SLOWER = frozenset(
    {
        "fill", "index_add", "index_copy", "index_put", "_index_put_impl", "scatter", "scatter_add", "scatter_reduce",
        "put", "embedding_dense_backward", "cumsum", "histc", "_unsafe_index_put",
    }
)  # fmt: skip
"""Operators that take another, slower way under torch.use_deterministic_algorithms (its documentation lists them),
and the fill of uninitialised memory that comes with it."""
FILL = "fill"
"""Goes away whole, but for fills of the job's own; of the slower ways a part remains."""
LEAST_SHARE = 0.03
"""Of the step: less is not worth a finding, only a note."""


@rule("ST603", "deterministic-left-on", needs={Signal.STEP, Signal.SETTINGS}, uses={Signal.OPERATORS, Signal.ACCOUNTS})
def deterministic_left_on(signals: Signals) -> Finding | None:
    """Deterministic algorithms were left on

    What it means
        torch.use_deterministic_algorithms(True) makes scatters, index writes and some convolutions take slower ways,
        and fills every new tensor (torch.utils.deterministic.fill_uninitialized_memory).

    How we know
        The switch is read while backward runs. Where a profile exists, the time of the operators that it changes is
        the ceiling of what is at stake; without one this is only a note.

    What helps
        Switch it off when the run need not repeat bit by bit; or keep it and set
        torch.utils.deterministic.fill_uninitialized_memory = False.

    When to ignore it
        When bit-equal repetition is required.
    """
    if not signals.settings.deterministic:
        return None
    changed = [use for use in signals.operators if plain_name(use.name) in SLOWER]
    scale = profile_scale(signals.operators, signals.accounts)
    spent = sum(use.duration for use in changed) * scale
    filling = sum(use.duration for use in changed if plain_name(use.name) == FILL) * scale
    share = ratio(spent, signals.step.duration.value)
    if share < LEAST_SHARE:
        summary = "Deterministic algorithms are on; what they cost here is small or was not measured"
        return deterministic_left_on.finding(summary, _ADVICE, weight=Weight.NOTE)
    slower = spent - filling
    likely, sure = 0.5 * slower + 0.9 * filling, 0.1 * slower + 0.5 * filling
    return _costly(signals, changed, modelled(likely, sure, spent, signals.step.steady))


_ADVICE = "Switch torch.use_deterministic_algorithms off unless the run must repeat bit by bit."


def _costly(signals: Signals, changed: list[OperatorUse], stake: Estimate) -> Finding:
    top = max(changed, key=lambda use: use.duration)
    share = format_share(ratio(stake.high, signals.step.duration.value))
    summary = (
        f"Deterministic algorithms are on: {format_duration(stake.high)} a step ({share}) in what they slow down, "
        f"most in {plain_name(top.name)}"
    )
    return deterministic_left_on.finding(summary, _ADVICE, stake, account="compute", source=top.source)
