"""ST102: more workers would hide the reading."""

from __future__ import annotations

from steptime.findings.case import LoaderUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.loader_model import Supply, supply, usable_text
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, ratio, scaled
from steptime.quantities import format_duration, format_share

LEAST_GAIN = 0.05
"""Of the step: workers cost memory and start-up, a smaller gain is not worth advising them."""
MOSTLY_HIDDEN = 0.1
"""Of the wait: where the advised workers are predicted to leave less of it, nothing more is asked for."""


@rule(
    "ST102",
    "too-few-workers",
    needs={Signal.STEP, Signal.LOADER},
    uses={Signal.SETTINGS, Signal.CONTENTION},
    instead_of=("input-wait",),
)
def too_few_workers(signals: Signals) -> Finding | None:
    """The loader has too few workers for its items

    What it means
        Making the batches of a step takes longer than the step itself, and there are idle CPUs that could make them
        at the same time.

    How we know
        Workers needed = (time per item x batch size + collating) x batches per step / (step - wait), all measured. The
        predicted step is the largest of: the step without its wait, the making of the batches divided by the workers,
        the CPU time of the whole job divided by the usable CPUs, and, where the training's own threads leave the
        workers no CPU of their own, the step without its wait and what the workers do there. The number advised is the
        smallest that comes within 3 % of the best prediction. The CPU time of making a batch is measured beside its
        time: where items wait (disk, network, sleep), a worker needs only a part of a CPU, and so many workers are
        considered as the usable CPUs have parts, 64 on a host and one for each batch of an epoch at most. A recording
        without CPU times (of an older version) gives each worker a CPU of its own. The time at stake is what the
        prediction saves.

    What helps
        Set num_workers as advised, with persistent_workers=True when there are several epochs. If the dataset draws
        random numbers, its augmentation will differ from the run without workers (each worker has its own seed).
        torch warns of more workers than CPUs whatever they do; for items that wait the warning may be ignored.

    When to ignore it
        When memory is short (each worker holds its own copy of what the dataset touches), or when making the item
        itself cheaper is easy: that helps with any number of workers.
    """
    step, loader = signals.step, signals.loader
    settings = signals.settings if signals.has(Signal.SETTINGS) else None
    contention = signals.contention if signals.has(Signal.CONTENTION) else None
    model = supply(step, loader, settings, contention)
    if model is None or loader.in_memory_tensors or model.best <= loader.workers:
        return None
    gain = step.duration.value - model.step(model.best)
    if gain < LEAST_GAIN * step.duration.value:
        return None
    stake = capped(scaled(loader.wait, ratio(gain, loader.wait.value)), loader.wait)
    return too_few_workers.finding(
        _summary(loader, model), _advice(loader, model), stake, account="input", source=loader.site or loader.item_site
    )


def _summary(loader: LoaderUse, model: Supply) -> str:
    have = "no worker" if loader.workers == 0 else f"{loader.workers} worker{'s' * (loader.workers > 1)}"
    needed = f"{model.needed} {'worker' if model.needed == 1 else 'workers'}"
    return (
        f"With {have}, a step waits {format_duration(loader.wait.value)}: its batches take "
        f"{format_duration(model.production)} to make, {needed} would do"
    )


def _advice(loader: LoaderUse, model: Supply) -> str:
    text = f"Set num_workers={model.best}"
    if not loader.persistent_workers:
        text += " and persistent_workers=True"
    text += f" ({_room(loader, model)})"
    if model.best < model.needed and model.step(model.best) - model.consumption > MOSTLY_HIDDEN * loader.wait.value:
        text += "; that will not hide all of it: make an item cheaper too"
    if loader.iterable and loader.workers == 0:
        text += ". The dataset is iterable: split it by torch.utils.data.get_worker_info() or every worker repeats it"
    return text + "."


def _room(loader: LoaderUse, model: Supply) -> str:
    """Why no more, or why so many."""
    if loader.busy is None:
        return f"at most the {usable_text(loader)}: this recording has no CPU times of the items"
    if model.best > loader.usable_cpus:
        return f"{usable_text(loader)}; making a batch is {format_share(1 - loader.busy)} waiting, which needs none"
    return usable_text(loader)
