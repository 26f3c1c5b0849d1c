"""ST303: the host waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.findings.case import GapUse, Signal, SiteUse
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.staging import staging_operators
from steptime.findings.stakes import modelled, named, ratio
from steptime.quantities import Estimate, format_duration, format_share, format_source

MOST_SITES = 3
"""A fourth site would not be read."""
HARMLESS = frozenset({"to", "cuda", "copy_"})
"""Calls that only wait when they copy from the device, or from pageable memory: they count only with measured idle
time."""


READS = {"_local_scalar_dense": "item", "is_nonzero": "item", "_to_copy": "to", "masked_select": "masked_select"}
"""Operators of ATen, and the call in Python that runs them."""


@rule(
    "ST303",
    "host-sync",
    needs={Signal.STEP, Signal.ACCOUNTS},
    uses={Signal.SITES, Signal.GAPS, Signal.COPIES},
)
def host_sync(signals: Signals) -> Iterator[Finding]:
    """The host waits for the device, and then the device for the host

    What it means
        A value is read from the device (item, cpu, tolist, nonzero, a boolean mask, a print): the host stands until
        the queue is empty, and the device idles until the next operators arrive.

    How we know
        The price is not the duration of the call but the device's idle time from the moment it ran dry to the next
        launch. A trace has that for each gap, with the operator that held the thread; the calls on device tensors are
        recorded with their lines in a few steps. Without a trace the ledger's sync account is the ceiling of all of
        them together.

    What helps
        Read values every n-th step; keep running sums on the device (loss.detach()); use where and masks of fixed size
        in place of nonzero and boolean indexing; copy with non_blocking=True from pinned memory.

    When to ignore it
        When the device has enough work queued: then no idle time follows and the rule does not fire.
    """
    staging = staging_operators(signals.copies)  # the matter of ST107
    gaps = [gap for gap in signals.gaps if gap.account == "sync" and gap.cause and gap.cause not in staging]
    for gap in sorted(gaps, key=_gap_idle, reverse=True)[:MOST_SITES]:
        yield _gap(signals, gap)
    if gaps:
        return
    sites = [site for site in signals.sites if site.device != "cpu" and site.calls > 0]
    ceiling = _ceiling(signals)
    known = sorted((site for site in sites if site.idle), key=_idle, reverse=True)
    for site in known[:MOST_SITES]:
        idle = site.idle or 0.0
        yield _site(signals, site, modelled(idle, 0.8 * idle, 1.2 * idle, signals.step.steady))
    suspects = [site for site in sites if site.idle is None and site.name not in HARMLESS]
    if suspects and not known and ceiling is not None:
        yield _site(signals, max(suspects, key=_calls), ceiling)


def _gap_idle(gap: GapUse) -> float:
    return gap.duration.value


def _gap(signals: Signals, gap: GapUse) -> Finding:
    """Idle time after a wait, with the line that waits where one call of that name was recorded."""
    call = READS.get(plain_name(gap.cause), plain_name(gap.cause))
    sites = [site for site in signals.sites if site.device != "cpu" and site.name == call]
    source = gap.source or (max(sites, key=_calls).source if sites else None)
    share = format_share(ratio(gap.duration.value, signals.step.duration.value))
    where = f" at {format_source(source)}" if source else ""
    idle = format_duration(gap.duration.value)
    summary = f"The device idles {idle} a step ({share}) after {gap.cause}{where} waited for it"
    evidence = (f"{gap.count:.3g} gaps a step, the longest {format_duration(gap.longest)}",)
    return host_sync.finding(summary, _advice(call), gap.duration, account="sync", source=source, evidence=evidence)


def _advice(call: str) -> str:
    if call in {"nonzero", "masked_select", "index", "unique"}:
        return "Its result has a size that only the device knows: use where(), or masks of fixed size."
    if call in HARMLESS or "emcpy" in call:
        return "To the device: pinned memory and non_blocking=True. From it: less often, or all values in one copy."
    if "Synchronize" in call:
        return "Leave synchronize() to measurements; a stream or an event waits without the host."
    return "Keep the value on the device and read it every n-th step."


def _idle(site: SiteUse) -> float:
    return site.idle or 0.0


def _calls(site: SiteUse) -> float:
    return site.calls


def _ceiling(signals: Signals) -> Estimate | None:
    sync = named(signals.accounts, "sync") if signals.has(Signal.ACCOUNTS) else None
    return sync.recoverable if sync is not None else None


def _site(signals: Signals, site: SiteUse, stake: Estimate) -> Finding:
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = (
        f"{site.name}() at {format_source(site.source)} makes the device idle "
        f"{format_duration(stake.value)} a step ({share}), {site.calls:.3g} calls"
    )
    advice = "Keep the value on the device and read it every n-th step."
    evidence = (site.source.text,) if site.source.text else ()
    return host_sync.finding(summary, advice, stake, account="sync", source=site.source, evidence=evidence)
