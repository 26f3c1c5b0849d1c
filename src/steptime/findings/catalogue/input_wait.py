"""ST101: the step waits for its loader."""

from __future__ import annotations

from steptime.findings.case import Contention, GapUse, LoaderUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.loader_model import handover, production, supply
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import less, named, ratio
from steptime.quantities import format_duration, format_share

COLLECTOR_TOLD = 0.1
"""Of the wait: below that the garbage collector's part in it goes untold."""
MOSTLY_WAITING = 0.5
"""Share of the making of a batch in which a CPU works: below, it is said that the rest is spent waiting."""


@rule(
    "ST101",
    "input-wait",
    needs={Signal.STEP, Signal.ACCOUNTS},
    uses={Signal.LOADER, Signal.PHASES, Signal.GAPS, Signal.SETTINGS, Signal.CONTENTION},
)
def input_wait(signals: Signals) -> Finding | None:
    """The training step waits for the next batch

    What it means
        The training thread stands in the loader's next() and does nothing else. No faster model, no lower precision
        and no better device shortens this time.

    How we know
        The wait inside the training loader's next() is timed in every step; the time per item and per collated batch is
        timed where it happens, in the workers if there are any, with the CPU time that it takes: the rest is waiting
        (disk, network, sleep), which needs no CPU. The time at stake is the wait, without the time that it takes to
        receive a batch that is ready from a worker (measured once on a machine, else a millisecond). A bare
        trace shows the loader's next() as an annotation: there the ledger's input account is at stake, on an
        accelerator the time that it idled meanwhile.

    What helps
        First whatever is the largest part: the reading of an item (decode less, cache what never changes, store the
        data in the form that training needs), the collating (stack once, not item by item), or the number of workers.
        The summary tells these apart; rules ST102 to ST106 fire instead of this one where a particular cause is
        certain.

    When to ignore it
        When the data really arrives at this pace (a stream, a simulator), or in a job that will run on a slower device.
    """
    if not signals.has(Signal.LOADER):
        return None if signals.has(Signal.PHASES) else _from_trace(signals)
    step, loader = signals.step, signals.loader
    share = format_share(ratio(loader.wait.value, step.duration.value))
    summary = f"Each step waits {format_duration(loader.wait.value)} ({share}) for the loader{_parts(loader)}"
    contention = signals.contention if signals.has(Signal.CONTENTION) else None
    at_stake = less(loader.wait, handover(loader, contention) if loader.workers else 0.0)
    source = loader.item_site or loader.site
    return input_wait.finding(summary, _advice(signals, contention), at_stake, account="input", source=source)


def _from_trace(signals: Signals) -> Finding | None:
    """What a trace alone can tell: the account, and the annotation of the loader."""
    account = named(signals.accounts, "input")
    if account is None:
        return None
    gap = max((gap for gap in signals.gaps if gap.account == "input"), key=_idle, default=None)
    share = format_share(ratio(account.duration.value, signals.step.duration.value))
    wait = format_duration(account.duration.value)
    on_device = signals.step.device != "cpu"
    what = f"The device idles {wait} a step" if on_device else f"Each step waits {wait}"
    inside = f", mostly in {gap.inside}" if gap and gap.inside else ""
    summary = f"{what} ({share}) for the next batch{inside}"
    evidence = (f"{gap.cause}: {gap.count:.3g} gaps a step, the longest {format_duration(gap.longest)}",) if gap else ()
    return input_wait.finding(
        summary,
        _advice_from_trace(gap.cause if gap is not None else ""),
        account.recoverable,
        account="input",
        source=gap.source if gap else None,
        evidence=evidence,
    )


def _advice_from_trace(cause: str) -> str:
    """By the class of the loader's iterator, which names whether there are workers."""
    watch = "steptime run times the loader's parts"
    if "SingleProcess" in cause:
        return f"The loader has no workers: try two, unless its items are cheap or in memory; {watch}."
    if "MultiProcessing" in cause:
        return f"Its workers do not keep up: try more of them, or cheaper items; {watch}."
    return f"Measure the job too: {watch}, and says how many workers would keep up."


def _idle(gap: GapUse) -> float:
    return gap.duration.value


def _parts(loader: LoaderUse) -> str:
    if loader.item is None:
        return ""
    text = f": {format_duration(loader.item.value)} an item"
    if loader.collate is not None:
        text += f", {format_duration(loader.collate.value)} to collate"
    if loader.busy is not None and loader.busy <= MOSTLY_WAITING:
        text += f", {format_share(1 - loader.busy)} of it waiting"
    if loader.collector * loader.demand >= COLLECTOR_TOLD * loader.wait.value > 0:
        text += f", {format_duration(loader.collector)} in gc"
    return text


def _advice(signals: Signals, contention: Contention | None) -> str:
    loader = signals.loader
    settings = signals.settings if signals.has(Signal.SETTINGS) else None
    model = supply(signals.step, loader, settings, contention)
    if model is None:
        return "Find out what next() waits for: the items of this dataset were not timed."
    if 2 * loader.collector * loader.demand > loader.wait.value:
        return "Most of it is Python's garbage collector, not the items: see ST202."
    if loader.workers and (production(loader) or 0.0) / loader.workers < loader.wait.value / 2:
        return "The workers make batches faster than that: look at what moves them (their size, pinning, the queue)."
    if model.best <= loader.workers:
        return f"More workers would not help here ({model.bounded_by}): make an item cheaper to read, or cache it."
    return f"Make an item cheaper to read, or read with {model.best} workers."
