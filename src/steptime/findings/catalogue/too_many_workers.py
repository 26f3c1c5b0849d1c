"""ST103: workers cost more than they bring."""

from __future__ import annotations

from steptime.findings.case import LoaderUse, Signal, StepSummary
from steptime.findings.finding import Finding
from steptime.findings.loader_model import Supply, supply, usable_text
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import more, ratio, scaled
from steptime.quantities import format_duration

LEAST_GAIN = 0.03
"""Of the wait: below this the prediction without workers is no better than noise."""


@rule(
    "ST103",
    "too-many-workers",
    needs={Signal.STEP, Signal.LOADER},
    uses={Signal.SETTINGS, Signal.CONTENTION},
    instead_of=("input-wait", "slow-collate", "too-few-workers"),
)
def too_many_workers(signals: Signals) -> Finding | None:
    """The loader's workers cost more than they bring

    What it means
        A batch from a worker has to be put into shared memory, announced through a queue and rebuilt; for cheap or
        in-memory items that takes longer than making the batch on the spot. Or there are more workers than CPUs, and
        they take turns with the training thread.

    How we know
        The time to make a step's batches is measured inside the workers. If it is shorter than the wait of the training
        thread, no workers at all would be faster; at stake is the difference, and a quarter of what receiving a batch
        takes on this machine, by which workers slow the training itself (a thread feeds their queues) and their own
        collating (into shared memory). If there are more workers than the usable CPUs have room for (a worker whose
        items wait needs only a part of a CPU) and the model of rule ST102 asks for fewer, the wait is at stake.

    What helps
        num_workers=0 for in-memory and cheap items, or the smaller number that the advice names.

    When to ignore it
        When the training device is so much faster elsewhere that the items become the bottleneck there.
    """
    step, loader = signals.step, signals.loader
    settings = signals.settings if signals.has(Signal.SETTINGS) else None
    contention = signals.contention if signals.has(Signal.CONTENTION) else None
    model = supply(step, loader, settings, contention)
    if model is None or loader.workers == 0:
        return None
    dearer, crowded = _dearer_than_none(loader, model), _more_than_processors(loader, model)
    if dearer and dearer.at_stake and _gain_of_more(step, loader, model) > dearer.at_stake.value:
        dearer = None
    if loader.in_memory_tensors:  # their making was timed while the workers took turns, and would cost far less alone
        return crowded or dearer
    return dearer or crowded


def _dearer_than_none(loader: LoaderUse, model: Supply) -> Finding | None:
    spent = loader.wait.value
    gain = spent - model.production
    if gain < LEAST_GAIN * spent or loader.wait.low <= model.production * 0.5:
        return None
    summary = (
        f"{loader.workers} worker{'s' * (loader.workers > 1)} cost a step {format_duration(spent)}; "
        f"making its batches in the training process takes {format_duration(model.production)}"
    )
    stake = more(scaled(loader.wait, ratio(gain, spent)), model.beside)
    return too_many_workers.finding(summary, "Set num_workers=0.", stake, account="input", source=loader.site)


def _gain_of_more(step: StepSummary, loader: LoaderUse, model: Supply) -> float:
    """What more workers are predicted to save, ns per step; 0 where they would save nothing."""
    if loader.in_memory_tensors or model.best <= loader.workers:
        return 0.0
    return step.duration.value - model.step(model.best)


def _more_than_processors(loader: LoaderUse, model: Supply) -> Finding | None:
    if loader.workers < model.limit or model.best >= loader.workers:
        return None
    summary = (
        f"{loader.workers} workers share {usable_text(loader)} with the training thread; "
        f"by the model {model.best} would do"
    )
    return too_many_workers.finding(
        summary, f"Set num_workers={model.best}.", loader.wait, account="input", source=loader.site
    )
