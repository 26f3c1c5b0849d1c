"""How many workers a loader needs: a model of supply and demand, from measured times.

One law: no advice about workers without this model.

As many workers are considered as there are CPUs for: one whose items wait half of their time needs half a CPU. Where
CPU time was not measured (recordings of older versions), each is given a whole one.

With w workers a step takes at least (1) its own time without the wait, and with receiving its batches, (2) the time to
produce its batches divided by w and to hand them over, (3) what the job's CPUs do per step, done by all usable CPUs at
once, and (4) what a CPU has to do that a worker shares with a thread of the training process; and each epoch starts
with a batch that is not there yet. Without workers (1) and (2) add up.

A batch is fetched out of its worker's memory by several questions, which a thread of that worker answers (a file
descriptor for each tensor, by multiprocessing.resource_sharer). While the worker is at its next batch, each answer
waits for the interpreter's lock, 5 ms at a time (sys.getswitchinterval).

(4) is for jobs that train on the CPU with several threads: an operator is over when its slowest thread is, and the
others spin until then, so that one worker on one of their CPUs slows them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from steptime.advice.evidence import Case
from steptime.advice.models import at_once
from steptime.advice.run_uses import Contention, LoaderUse, SettingsUse, StepSummary
from steptime.quantities import format_count

HANDOVER = 1_000_000.0
"""ns per batch to receive it from a worker (queue, shared memory, rebuilding tensors), where the machine was not
measured: 1.0 to 1.5 ms on two virtual CPUs with torch 2.13 and batches of 0.5 KB to 3 MB that were ready when asked
for; 2 to 2.5 ms on another day."""
UNHIDDEN = 0.25
"""Fraction of the handover: what workers cost the training next to its wait. A thread of it feeds their queues and
takes the interpreter's lock for that, its caches are cold when it wakes, and a worker collates into shared memory,
which takes longer. By hand (torch 2.13, two virtual CPUs, a handover of 1.17 ms, four runs) a step of 0.3 ms took 0.13
to 0.32 ms longer with one or two workers, and collating in a worker 0.14 ms longer."""
SWITCH = 5_000_000.0
"""ns that a thread waits before it demands the interpreter's lock (sys.getswitchinterval): a batch that takes no
longer is done by then."""
LOCKED = 45_000_000.0
"""ns for which a worker that is at its second batch keeps the first one of an epoch, at most: with two tensors a batch
and items in pure Python 28 to 31 ms where a batch took 25, 46 where it took 52 (torch 2.13, Python 3.11; 5 where the
items release the lock)."""
OUT_OF_STEP = 0.5
"""Fraction of the time by which workers that share the CPUs of an operator's threads may delay it one after the other
instead of at once. Their order is the scheduler's, so the middle is taken. On two virtual CPUs with two threads, steps
with two workers took 0.95 to 1.20 times what it predicts in eight trials of three jobs; more CPUs were not tried."""
INFORMATIVE = 0.05
"""Fraction of the step: a shorter wait does not tell whether a CPU works or sleeps in it."""
MORE_WORKERS_MUST_BRING = 0.03
"""A further worker that gains less than this share of the step is not worth its memory."""
MOST_WORKERS = 64
"""Workers of all training processes of a host together, where CPUs would allow more as items wait. Each takes memory of
its own: 25 MB where it was forked, 170 MB where it was spawned (torch 2.13, batches of 2.4 MB), so that 64 take 2 to 11
GB."""
EACH = 8
"""Batches of an epoch that each worker makes at least. The first two of each are made in one wave before anybody asks:
with less, the wave and the workers' start are most of what they do (120 batches of 80 ms: 8 workers took 4.1 s, 40 took
4.0 s, of which the steps behind the first wave took none)."""
MEMORY_BOUND = f"at most {MOST_WORKERS} on a host, for their memory"
LEAST_BUSY = 0.001
"""CPUs that a worker needs at least."""


@dataclass(frozen=True, slots=True)
class Supply:
    """production: ns that one process needs to make a step's batches. consumption: the step without its wait; both as
    if neither disturbed the other. worked: ns of the production that take a CPU; it sleeps in the others. handover: ns
    to receive a step's batches from workers that have them ready. delay: ns that it takes longer where they are at
    their next ones. opening: ns per step that the first batch of each epoch takes, which workers start with only when
    they are asked: nothing hides it. unhidden: ns a step of all this that none of it takes without workers.

    processor: ns that the CPUs need for a step at full use. threads, cpus: of the training process, where it computes
    on the CPU (else 1 thread), and for it and its workers. needed: workers so that production keeps up, unbounded.
    limit: workers that are considered; bounded_by: what they are bounded by, in words.
    """

    production: float
    worked: float
    consumption: float
    handover: float
    delay: float
    opening: float
    unhidden: float
    processor: float
    threads: int
    cpus: int
    needed: int
    limit: int
    bounded_by: str

    def step(self, workers: int) -> float:
        """Predicted ns of a step with a number of workers."""
        if workers == 0:
            return self.production + self.consumption - self.unhidden
        received = self.consumption + self.handover
        alone = max(max(received, self.production / workers) + self.delay, self.processor)
        return max(alone, self._shared(workers)) + self.opening

    @property
    def best(self) -> int:
        """The smallest number of workers whose predicted step is within MORE_WORKERS_MUST_BRING of the shortest."""
        predicted = [self.step(workers) for workers in range(self.limit + 1)]
        enough = min(predicted) * (1 + MORE_WORKERS_MUST_BRING)
        return next(workers for workers, step in enumerate(predicted) if step <= enough)

    def _shared(self, workers: int) -> float:
        """ns that a CPU needs on which a worker and a thread of the training process run; 0 where none is shared."""
        sharing = _sharing(workers, self.threads, self.cpus)
        if not sharing:
            return 0.0
        each = self.worked / workers
        at_once = math.ceil(sharing / self.threads) * each
        apart = min(self.consumption, sharing * each - at_once)
        return self.consumption + at_once + OUT_OF_STEP * apart


def _sharing(workers: int, threads: int, cpus: int) -> int:
    """Workers that find no CPU without a thread of the training process. One thread alone goes to another CPU."""
    return max(0, workers - max(0, cpus - threads)) if threads > 1 else 0


def production(loader: LoaderUse) -> float | None:
    """ns that one process needs to make the batches of a step; None where items were not timed. Whatever process makes
    the items collects their garbage."""
    if loader.item is None:
        return None
    collate = loader.collate.value if loader.collate is not None else 0.0
    return (loader.item.value * (loader.batch_size or 1) + collate + loader.collector) * loader.demand


def handover(loader: LoaderUse, contention: Contention | None) -> float:
    """ns that a step needs to receive its batches from workers that have them ready."""
    measured = contention.handover if contention is not None else None
    return (HANDOVER if measured is None else measured) * loader.demand


def supply(case: Case, loader: LoaderUse) -> Supply | None:
    """The model of a loader; None where its items were not timed."""
    produced = production(loader)
    if produced is None:
        return None
    consumed = max(0.0, case.step.duration.value - loader.wait.value)
    usable = max(1, loader.usable_cpus)
    threads, cpus = _places(case.step, case.settings, usable)
    works = loader.busy
    if works is None:
        works = _works(case.step, loader, consumed * (1 + threads) / 2, case.contention)
    limit, bounded_by = _limit(loader, case.settings)
    produced, consumed = _undisturbed(produced, consumed, works, loader.workers, (threads, cpus))
    needed = math.ceil(min(produced / consumed, 1e6)) if consumed > 0 else usable
    received = handover(loader, case.contention)
    return Supply(
        production=produced,
        worked=produced * works,
        consumption=consumed,
        handover=received,
        delay=_delay(received, produced, consumed, SWITCH * loader.demand) * works,
        opening=_opening(loader, produced, works),
        unhidden=min(UNHIDDEN * received, consumed / 2) if loader.workers else 0.0,
        processor=_processor(case.step, produced * works + consumed * threads, case.contention, usable),
        threads=threads,
        cpus=cpus,
        needed=max(1, needed),
        limit=limit,
        bounded_by=bounded_by,
    )


def usable_text(loader: LoaderUse) -> str:
    """ "2 usable CPUs"."""
    return format_count(loader.usable_cpus, "usable CPU")


def _limit(loader: LoaderUse, settings: SettingsUse | None) -> tuple[int, str]:
    """Workers that are considered, and what bounds them: never fewer than the CPUs."""
    usable, cpus = max(1, loader.usable_cpus), usable_text(loader)
    if loader.busy is None:
        return usable, cpus
    bounds = [
        (int(usable / max(loader.busy, LEAST_BUSY)), cpus),
        (MOST_WORKERS // max(1, settings.trainers_on_host if settings is not None else 1), MEMORY_BOUND),
    ]
    if loader.batches is not None:
        bounds.append((loader.batches // EACH, f"{EACH} batches of an epoch for each"))
    limit, reason = min(bounds)
    return (limit, reason) if limit > usable else (usable, cpus)


def _places(step: StepSummary, settings: SettingsUse | None, usable: int) -> tuple[int, int]:
    """Threads of the training process that compute, and the CPUs for them and its workers."""
    if settings is None:
        return 1, usable
    cpus = max(1, usable // max(1, settings.trainers_on_host))
    return (max(1, min(settings.intra_op_threads, cpus)) if step.device == "cpu" else 1), cpus


def _works(step: StepSummary, loader: LoaderUse, training: float, contention: Contention | None) -> float:
    """The share of making a batch in which a CPU works, not sleeps: that of the wait for it, as far as the CPU time of
    the job exceeds that of its `training`, ns per step (which kept one of its threads busy, or all: the middle is
    taken). CPU time that other processes took, the job may have wanted. 1 where there is no wait to tell it from."""
    wait = min(loader.wait.value, step.duration.value)
    if contention is None or contention.job_cpu <= 0 or wait < INFORMATIVE * step.duration.value or wait <= 0:
        return 1.0
    busy = step.duration.value * (contention.job_cpu + contention.other_cpu)
    return min(1.0, max(0.0, busy - training) / wait)


def _undisturbed(
    produced: float, consumed: float, works: float, workers: int, places: tuple[int, int]
) -> tuple[float, float]:
    """Production and consumption if the present workers did not share CPUs with the training: all who want one CPU get
    equal parts of it."""
    sharing = _sharing(workers, *places)
    if not sharing or not consumed:
        return produced, consumed
    on_one = math.ceil(sharing / places[0])
    lost = works * on_one / (on_one + 1)
    step = max(consumed, produced / workers)
    busy, training = produced / workers / step, consumed / step
    return produced * (1 - lost * training * sharing / workers), consumed * (1 - lost * busy)


def _delay(received: float, produced: float, consumed: float, switch: float) -> float:
    """As long as receiving takes at most, where making the next batch takes as long as the step: with one worker and
    items in pure Python batches that took 25 ms arrived 5 to 8 ms after they were ready and asked for, where receiving
    from an idle one was measured as 2.6."""
    busy = min(1.0, produced / consumed) if consumed > 0 else 1.0
    return min(received * busy, max(0.0, produced - switch))


def _opening(loader: LoaderUse, produced: float, works: float) -> float:
    """ns per step. Where there are workers already, the step as it was measured holds it."""
    again = loader.steps_per_start if loader.starts and not loader.workers else None
    if not again or not loader.demand:
        return 0.0
    return _first_batch(produced / loader.demand, works) / again


def opening(loader: LoaderUse) -> float:
    """ns that the first batch of an epoch takes workers that are there already; 0 where items were not timed."""
    produced = production(loader)
    return _first_batch(produced / loader.demand, 1.0) if produced and loader.demand else 0.0


def _first_batch(made: float, works: float) -> float:
    """ns. made: of a batch, in one process; works: its share in which a CPU works."""
    return made + min(LOCKED, works * made)


def _processor(step: StepSummary, unmeasured: float, contention: Contention | None, usable: int) -> float:
    """ns that all CPUs need for a step: from what the job kept busy, else `unmeasured`."""
    if contention is not None and contention.job_cpu > 0:
        return step.duration.value * at_once(contention.job_cpu, contention) / at_once(usable, contention)
    return unmeasured / usable


def samples_per_step(case: Case) -> float | None:
    """Items that a step reads from its loader, else rows of what its model is called with; None where nobody knows."""
    if case.loader is not None and case.loader.batch_size:
        return case.loader.batch_size * case.loader.demand
    return case.inputs.samples if case.inputs is not None else None
