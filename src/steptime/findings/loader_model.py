"""How many workers a loader needs: a model of supply and demand, from measured times.

One law: no advice about workers without this model.

With w workers a step takes at least (1) its own time without the wait, and with receiving its batches, (2) the time to
produce its batches divided by w, and (3) what the job's CPUs do per step, done by all usable CPUs at once; and each
epoch begins with a batch that is not there yet. Without workers (1) and (2) add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from steptime.findings.case import Contention, LoaderUse, SettingsUse, StepSummary
from steptime.findings.threads import at_once

HANDOVER = 1_000_000.0
"""ns per batch to receive it from a worker (queue, shared memory, rebuilding tensors), where the machine was not
measured: 1.0 to 1.5 ms on two virtual CPUs with torch 2.13 and batches of 0.5 KB to 3 MB that were ready when asked
for; 2 to 2.5 ms on another day."""
MORE_WORKERS_MUST_BRING = 0.03
"""A further worker that gains less than this share of the step is not worth its memory."""


@dataclass(frozen=True, slots=True)
class Supply:
    """production: ns that one process needs to make a step's batches. consumption: the step without its wait. handover:
    ns to receive a step's batches from workers that have them ready. opening: ns a step that the first batch of each
    epoch takes, which workers begin with only when they are asked: nothing hides it.

    processor: ns that the CPUs need for a step at full use. needed: workers so that production keeps up, unbounded.
    best: number of workers with the shortest predicted step, the smallest such. limit: workers that were considered.
    """

    production: float
    consumption: float
    handover: float
    opening: float
    processor: float
    needed: int
    best: int
    limit: int

    def step(self, workers: int) -> float:
        """Predicted ns of a step with a number of workers."""
        if workers == 0:
            return self.production + self.consumption
        return max(self.consumption + self.handover, self.production / workers, self.processor) + self.opening


def production(loader: LoaderUse) -> float | None:
    """ns that one process needs to make the batches of a step; None where items were not timed."""
    if loader.item is None:
        return None
    collate = loader.collate.value if loader.collate is not None else 0.0
    return (loader.item.value * (loader.batch_size or 1) + collate) * loader.demand


def handover(loader: LoaderUse, contention: Contention | None) -> float:
    """ns that a step needs to receive its batches from workers that have them ready."""
    measured = contention.handover if contention is not None else None
    return (HANDOVER if measured is None else measured) * loader.demand


def supply(
    step: StepSummary, loader: LoaderUse, settings: SettingsUse | None, contention: Contention | None
) -> Supply | None:
    """The model of a loader; None where its items were not timed."""
    produced = production(loader)
    if produced is None:
        return None
    consumed = max(0.0, step.duration.value - loader.wait.value)
    limit = max(1, loader.usable_cpus)
    needed = math.ceil(min(produced / consumed, 1e6)) if consumed > 0 else limit
    processor = _processor(step, produced, consumed, settings, contention, limit)
    received, opening = handover(loader, contention), _opening(loader, produced)
    draft = Supply(produced, consumed, received, opening, processor, needed=max(1, needed), best=0, limit=limit)
    return replace(draft, best=_best(draft))


def _opening(loader: LoaderUse, produced: float) -> float:
    """Where there are workers already, the step as it was measured holds it."""
    again = loader.steps_per_start if loader.starts and not loader.workers else None
    return produced / loader.demand / again if again and loader.demand else 0.0


def _processor(
    step: StepSummary,
    produced: float,
    consumed: float,
    settings: SettingsUse | None,
    contention: Contention | None,
    limit: int,
) -> float:
    """ns that all CPUs need for a step: from what the job kept busy, else as if nothing ever slept."""
    if contention is not None and contention.job_cpu > 0:
        return step.duration.value * at_once(contention.job_cpu, contention) / at_once(limit, contention)
    threads = settings.intra_op_threads if settings is not None and step.device == "cpu" else 1
    return (produced + consumed * threads) / limit


def _best(draft: Supply) -> int:
    """The smallest number of workers whose predicted step is within MORE_WORKERS_MUST_BRING of the shortest."""
    predicted = [draft.step(workers) for workers in range(draft.limit + 1)]
    enough = min(predicted) * (1 + MORE_WORKERS_MUST_BRING)
    return next(workers for workers, step in enumerate(predicted) if step <= enough)
