"""ST106: collating takes longer than reading."""

from __future__ import annotations

from steptime.findings.case import LoaderUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.loader_model import production
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, ratio, scaled
from steptime.quantities import format_duration, format_share

COLLATE_SHARE = 0.5
"""Of the making of a batch: from half on, collating is the first thing to mend."""


@rule("ST106", "slow-collate", needs={Signal.STEP, Signal.LOADER}, instead_of=("input-wait", "too-few-workers"))
def slow_collate(signals: Signals) -> Finding | None:
    """Collating a batch takes longer than reading its items

    What it means
        The function that puts items together (collate_fn) is the slow part of the input: padding in Python, lists of
        numbers, conversions item by item.

    How we know
        Reading and collating are timed apart, in the process that does them. The rule fires when collating is at
        least half of the two; the time at stake is its share of the wait, and at most the collating of a step.

    What helps
        Make one array or tensor for the whole batch (torch.nn.utils.rnn.pad_sequence, np.stack, one torch.from_numpy)
        instead of one per item; pad into a preallocated tensor; sort by length so that there is less padding; tokenise
        and convert once, before training.

    When to ignore it
        When workers already hide it: then there is no wait, and the rule does not fire.
    """
    loader = signals.loader
    produced = production(loader)
    if produced is None or loader.collate is None:
        return None
    share = ratio(loader.collate.value * loader.demand, produced)
    if share < COLLATE_SHARE:
        return None
    collating = scaled(loader.collate, loader.demand)
    stake = capped(scaled(loader.wait, min(1.0, share)), collating)
    return slow_collate.finding(_summary(loader, share), _advice(loader), stake, account="input", source=loader.site)


def _is_default(loader: LoaderUse) -> bool:
    return "default_collate" in loader.collate_name or not loader.collate_name


def _summary(loader: LoaderUse, share: float) -> str:
    what = "default_collate" if _is_default(loader) else loader.collate_name.rsplit(".", 1)[-1]
    collate = format_duration(loader.collate.value if loader.collate else 0.0)
    wait = format_duration(loader.wait.value)
    return f"{what} takes {collate} a batch, {format_share(share)} of its making; steps wait {wait}"


def _advice(loader: LoaderUse) -> str:
    if _is_default(loader):
        return (
            "Return whole batches from the dataset (__getitems__), or larger items: stacking many small ones is slow."
        )
    return "Build each batch with one operation (pad_sequence, np.stack, a preallocated tensor), not item by item."
