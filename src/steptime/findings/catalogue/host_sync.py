"""ST303: the host waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.findings.case import Signal, SiteUse
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, named, ratio
from steptime.quantities import Estimate, format_duration, format_share, format_source

MOST_SITES = 3
"""A fourth site would not be read."""
HARMLESS = frozenset({"to", "cuda", "copy_"})
"""Calls that only wait when they copy from the device, or from pageable memory: they count only with measured idle
time."""


@rule("ST303", "host-sync", needs={Signal.STEP, Signal.SITES}, uses={Signal.ACCOUNTS})
def host_sync(signals: Signals) -> Iterator[Finding]:
    """The host waits for the device, and then the device for the host

    What it means
        A value is read from the device (item, cpu, tolist, nonzero, a boolean mask, a print): the host stands until
        the queue is empty, and the device idles until the next operators arrive.

    How we know
        The calls on device tensors are recorded with their lines in a few steps. Their price is not the duration of
        the call but the device's idle time from the moment it ran dry to the next launch; where the trace has that,
        it is at stake, else the ledger's sync account is the ceiling of all sites together.

    What helps
        Read values every n-th step; keep running sums on the device (loss.detach()); use where and masks of fixed size
        in place of nonzero and boolean indexing; copy with non_blocking=True from pinned memory.

    When to ignore it
        When the device has enough work queued: then no idle time follows and the rule does not fire.
    """
    sites = [site for site in signals.sites if site.device != "cpu" and site.calls > 0]
    ceiling = _ceiling(signals)
    known = sorted((site for site in sites if site.idle), key=_idle, reverse=True)
    for site in known[:MOST_SITES]:
        idle = site.idle or 0.0
        yield _site(signals, site, modelled(idle, 0.8 * idle, 1.2 * idle, signals.step.steady))
    suspects = [site for site in sites if site.idle is None and site.name not in HARMLESS]
    if suspects and not known and ceiling is not None:
        yield _site(signals, max(suspects, key=_calls), ceiling)


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
