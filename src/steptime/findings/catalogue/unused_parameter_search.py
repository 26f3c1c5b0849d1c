"""ST813: every step looks for unused parameters."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio
from steptime.quantities import format_duration, format_share


@rule("ST813", "unused-parameter-search", needs={Signal.STEP, Signal.GRADIENTS})
def unused_parameter_search(signals: Signals) -> Finding | None:
    """Every step searches the graph for unused parameters

    What it means
        find_unused_parameters=True makes DistributedDataParallel walk the whole autograd graph before each backward, on
        the host, and exchange which parameters were used.

    How we know
        The search is an operator of its own in the trace (search_unused_parameters); its time is what is at stake.

    What helps
        Leave find_unused_parameters out where all parameters get gradients (torch warns where it was not needed), or
        use static_graph=True where it is always the same ones that do not.

    When to ignore it
        When branches of the model really change from step to step.
    """
    search = signals.gradients.search
    if search.value <= 0:
        return None
    share = format_share(ratio(search.value, signals.step.duration.value))
    summary = f"Looking for unused parameters takes {format_duration(search.value)} a step ({share})"
    advice = "Leave find_unused_parameters=True out, or use static_graph=True if the unused ones never change."
    return unused_parameter_search.finding(summary, advice, search)
