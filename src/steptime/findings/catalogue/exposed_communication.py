"""ST805: the device waits for the network."""

from __future__ import annotations

from steptime.findings.case import CollectiveUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import named, ratio
from steptime.quantities import format_bytes, format_duration, format_share


@rule("ST805", "exposed-communication", needs={Signal.STEP, Signal.ACCOUNTS}, uses={Signal.COLLECTIVES, Signal.RANKS})
def exposed_communication(signals: Signals) -> Finding | None:
    """Collectives run while nothing hides them

    What it means
        The ranks exchange gradients, weights or activations, and no computation runs meanwhile. A collective also waits
        inside its kernel for the rank that arrives last, so this is the network's time and the others' lateness
        together; traces of all ranks tell them apart (ST806).

    How we know
        On a device the kernels of the collectives are in the trace, and exposed is the time in which nothing but
        communication ran; on a CPU it is the time that the training thread was blocked in a collective.

    What helps
        Exchange less often (no_sync() under gradient accumulation) or less (bfloat16 gradients through a
        communication hook, sharding that fits the network); begin earlier (smaller first buckets, static_graph=True);
        a larger batch per rank, which computes longer for the same exchange.

    When to ignore it
        When the ranks share one machine for a test that will run elsewhere.
    """
    account = named(signals.accounts, "communication")
    if account is None:
        return None
    top = max(signals.collectives, key=_exposed, default=None)
    most = f", most in {top.name}" if top is not None else ""
    share = format_share(ratio(account.duration.value, signals.step.duration.value))
    summary = f"Communication that nothing hides takes {format_duration(account.duration.value)} a step ({share}){most}"
    evidence = tuple(map(_told, sorted(signals.collectives, key=_exposed, reverse=True)[:3]))
    return exposed_communication.finding(
        summary, _advice(signals), account.recoverable, account="communication", evidence=evidence
    )


def _exposed(use: CollectiveUse) -> float:
    return use.exposed.value


def _told(use: CollectiveUse) -> str:
    size = f", {format_bytes(use.bytes)}" if use.bytes else ""
    return (
        f"{use.name}: {use.calls:.4g} a step{size}, {format_duration(use.duration.value)}, of it "
        f"{format_duration(use.exposed.value)} exposed"
    )


def _advice(signals: Signals) -> str:
    if signals.has(Signal.RANKS):
        return "Exchange less often (no_sync while accumulating), or overlap it with backward (buckets)."
    return "Diagnose the traces of all ranks together, to tell a slow network from a late rank."
