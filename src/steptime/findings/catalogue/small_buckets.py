"""ST812: gradients travel in many small buckets."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, named
from steptime.quantities import format_bytes, format_duration

BUCKET_BYTES = 25 << 20
"""DistributedDataParallel's default bucket_cap_mb; its first bucket is 1 MiB."""
SMALL_BYTES = 4 << 20
"""On average: below this the fixed cost of a collective is most of it on usual networks."""
MANY = 8
SURE = 0.3
"""Of the modelled gain: how much of a collective is fixed cost, only the network knows."""


@rule(
    "ST812",
    "small-buckets",
    needs={Signal.STEP, Signal.ACCOUNTS, Signal.GRADIENTS},
    instead_of=("exposed-communication",),
)
def small_buckets(signals: Signals) -> Finding | None:
    """Gradients are exchanged in many small buckets

    What it means
        Each bucket of gradients is a collective of its own, and each collective has a cost that does not depend on its
        size: launching it, and a round trip between the ranks. Many small ones pay it many times.

    How we know
        The all-reduces behind each backward are counted, and their sizes are in the trace. The gain is modelled: the
        exposed communication times the share of collectives that buckets of 25 MiB would do without.

    What helps
        Leave bucket_cap_mb at its default of 25 or raise it; too large buckets begin late, so try some sizes.

    When to ignore it
        When communication hides behind backward anyway.
    """
    use, account = signals.gradients, named(signals.accounts, "communication")
    size = 4 * use.elements  # gradients are float32 unless the whole model is in half precision
    if account is None or use.buckets < MANY or not 0 < size < use.buckets * SMALL_BYTES:
        return None
    needed = 1 + -(-size // BUCKET_BYTES)
    gain = account.duration.value * (1 - min(needed, use.buckets) / use.buckets)
    summary = (
        f"Gradients of {format_bytes(size)} travel in {use.buckets:.3g} buckets of {format_bytes(size / use.buckets)}; "
        f"communication takes {format_duration(account.duration.value)}"
    )
    advice = f"Raise bucket_cap_mb of DistributedDataParallel: {needed:.0f} buckets would do."
    stake = modelled(gain, SURE * gain, account.duration.value, signals.step.steady)
    return small_buckets.finding(summary, advice, stake, account="communication")
