"""Model of how many workers a loader needs: supply and demand, from measured times.

One law: no advice about workers without this model.

The number of workers is limited by the CPUs: one whose items wait half of their time needs half a CPU. If CPU time was
not measured (recordings of older versions), each worker counts as a whole CPU.

With w workers a step takes at least (1) its own time without the wait, plus receiving its batches, (2) the time to
produce its batches divided by w, plus handing them over, (3) the CPU work of the job per step on all usable CPUs, and
(4) the work of a CPU that a worker shares with a thread of the training process; and each epoch starts with a batch
that is not ready yet. Without workers (1) and (2) add up.

Receiving a batch from a worker takes several requests, which a thread of that worker answers (a file descriptor for
each tensor, by multiprocessing.resource_sharer). While the worker prepares its next batch, each answer waits for the
interpreter's lock, 5 ms at a time (sys.getswitchinterval).

(4) is for jobs that train on the CPU with several threads. An operator ends with its slowest thread, and the others
spin until then, so one worker on one of their CPUs slows them all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from steptime.advice.evidence import Case
from steptime.advice.models import at_once
from steptime.advice.run_uses import Contention, LoaderUse, SettingsUse, StepSummary
from steptime.quantities import format_count

HANDOVER = 1_000_000.0
"""Time per batch to receive it from a worker (queue, shared memory, rebuilding tensors) if the machine was not
measured, ns: 1.0 to 1.5 ms on two virtual CPUs with torch 2.13 and ready batches of 0.5 KB to 3 MB; 2 to 2.5 ms on
another day."""
UNHIDDEN = 0.25
"""Cost of workers for the training besides its wait, as a fraction of the handover. A thread feeds their queues and
takes the interpreter's lock for that, caches are cold when the training wakes, and a worker collates into shared
memory, which takes longer. As measured (torch 2.13, two virtual CPUs, a handover of 1.17 ms, four runs), a step of 0.3
ms took 0.13 to 0.32 ms longer with one or two workers, and collating in a worker 0.14 ms longer."""
SWITCH = 5_000_000.0
"""Time that a thread waits before it demands the interpreter's lock, ns (sys.getswitchinterval): a shorter batch is
done by then."""
LOCKED = 45_000_000.0
"""Longest time for which a worker that prepares its second batch delays the first one of an epoch, ns: with two tensors
per batch and items in pure Python 28 to 31 ms for a batch of 25 ms, 46 for one of 52 (torch 2.13, Python 3.11; 5 if the
items release the lock)."""
OUT_OF_STEP = 0.5
"""Fraction of the delay by workers on the CPUs of an operator's threads that adds up instead of overlapping. Their
order is the scheduler's, so the middle is assumed. On two virtual CPUs with two threads, steps with two workers took
0.95 to 1.20 times the prediction in eight trials of three jobs; more CPUs were not tried."""
INFORMATIVE = 0.05
"""Least wait, as a fraction of the step, that shows whether a CPU works or sleeps in it."""
MORE_WORKERS_MUST_BRING = 0.03
"""Least gain of a further worker, as a fraction of the step, that justifies its memory."""
MOST_WORKERS = 64
"""Most workers of all training processes of a host together, if CPUs would allow more because items wait. Each takes
memory of its own: 25 MB if forked, 170 MB if spawned (torch 2.13, batches of 2.4 MB), so that 64 take 2 to 11 GB."""
EACH = 8
"""Least number of batches of an epoch per worker. The first two of each are made in one wave before any is requested:
with fewer, that wave and the workers' start dominate (120 batches of 80 ms: 8 workers took 4.1 s, 40 took 4.0 s, none
of it in the steps after the first wave)."""
MEMORY_BOUND = f"at most {MOST_WORKERS} on a host, for their memory"
LEAST_BUSY = 0.001
"""Least CPUs that a worker counts as."""


@dataclass(frozen=True, slots=True)
class Supply:
    """Time that a loader's batches take to make and to use, ns per step. production: one process's time to make a
    step's batches; consumption: time of the step without its wait; both as if neither slowed the other. worked: part of
    the production on a CPU; the rest is sleep. handover: time to receive ready batches from workers. delay: extra time
    to receive them while workers prepare the next. opening: time of the first batch of each epoch, divided by its
    steps; workers start it only on request, so nothing hides it. unhidden: part of these costs that does not exist
    without workers.

    processor: CPU time of a step at full use of all CPUs. threads: number of the training process's threads if it
    computes on the CPU, else 1; cpus: number of CPUs for it and its workers. needed: number of workers with which
    production keeps up, without a limit. limit: largest number of workers considered; bounded_by: reason for it, in
    words."""

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
        """Predicted time of a step with this number of workers, ns."""
        if workers == 0:
            return self.production + self.consumption - self.unhidden
        received = self.consumption + self.handover
        alone = max(max(received, self.production / workers) + self.delay, self.processor)
        return max(alone, self._shared(workers)) + self.opening

    @property
    def best(self) -> int:
        """Smallest number of workers whose predicted step is within MORE_WORKERS_MUST_BRING of the shortest."""
        predicted = [self.step(workers) for workers in range(self.limit + 1)]
        enough = min(predicted) * (1 + MORE_WORKERS_MUST_BRING)
        return next(workers for workers, step in enumerate(predicted) if step <= enough)

    def _shared(self, workers: int) -> float:
        """Time that a CPU needs on which both a worker and a training thread run, ns; 0 if none is shared."""
        sharing = _sharing(workers, self.threads, self.cpus)
        if not sharing:
            return 0.0
        each = self.worked / workers
        at_once = math.ceil(sharing / self.threads) * each
        apart = min(self.consumption, sharing * each - at_once)
        return self.consumption + at_once + OUT_OF_STEP * apart


def _sharing(workers: int, threads: int, cpus: int) -> int:
    """Number of workers without a CPU of their own. A single training thread moves to another CPU."""
    return max(0, workers - max(0, cpus - threads)) if threads > 1 else 0


def production(loader: LoaderUse) -> float | None:
    """Time that one process needs to make the batches of a step, ns, including its garbage collections; None if items
    were not timed."""
    if loader.item is None:
        return None
    collate = loader.collate.value if loader.collate is not None else 0.0
    return (loader.item.value * (loader.batch_size or 1) + collate + loader.collector) * loader.demand


def handover(loader: LoaderUse, contention: Contention | None) -> float:
    """Time per step to receive its batches from workers that have them ready, ns."""
    measured = contention.handover if contention is not None else None
    return (HANDOVER if measured is None else measured) * loader.demand


def supply(case: Case, loader: LoaderUse) -> Supply | None:
    """Production and consumption of a loader's batches; None if its items were not timed."""
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
    """Text on the CPUs that a loader's job can use, such as "2 usable CPUs"."""
    return format_count(loader.usable_cpus, "usable CPU")


def _limit(loader: LoaderUse, settings: SettingsUse | None) -> tuple[int, str]:
    """Most workers to consider, at least as many as CPUs, and the reason in words."""
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
    """Fraction of batch preparation in which a CPU works. It is estimated from the wait for a batch: the CPU time of
    the job beyond its `training`, ns per step, which kept one of its threads busy, or all (the middle is assumed). CPU
    time of other processes counts, because the job may have wanted it. 1 if there is no wait to tell it from."""
    wait = min(loader.wait.value, step.duration.value)
    if contention is None or contention.job_cpu <= 0 or wait < INFORMATIVE * step.duration.value or wait <= 0:
        return 1.0
    busy = step.duration.value * (contention.job_cpu + contention.other_cpu)
    return min(1.0, max(0.0, busy - training) / wait)


def _undisturbed(
    produced: float, consumed: float, works: float, workers: int, places: tuple[int, int]
) -> tuple[float, float]:
    """Production and consumption as if the present workers did not share CPUs with the training; processes on one CPU
    get equal parts of it."""
    sharing = _sharing(workers, *places)
    if not sharing or not consumed:
        return produced, consumed
    on_one = math.ceil(sharing / places[0])
    lost = works * on_one / (on_one + 1)
    step = max(consumed, produced / workers)
    busy, training = produced / workers / step, consumed / step
    return produced * (1 - lost * training * sharing / workers), consumed * (1 - lost * busy)


def _delay(received: float, produced: float, consumed: float, switch: float) -> float:
    """Extra time to receive batches while workers prepare the next, ns: at most the time of receiving, reached if
    preparing a batch takes as long as the step. With one worker and items in pure Python, batches of 25 ms arrived 5 to
    8 ms after they were ready and requested; receiving from an idle worker took 2.6."""
    busy = min(1.0, produced / consumed) if consumed > 0 else 1.0
    return min(received * busy, max(0.0, produced - switch))


def _opening(loader: LoaderUse, produced: float, works: float) -> float:
    """Time of each epoch's first batch, ns per step. 0 with workers, whose measured step includes it."""
    again = loader.steps_per_start if loader.starts and not loader.workers else None
    if not again or not loader.demand:
        return 0.0
    return _first_batch(produced / loader.demand, works) / again


def opening(loader: LoaderUse) -> float:
    """Time until running workers deliver the first batch of an epoch, ns; 0 if items were not timed."""
    produced = production(loader)
    return _first_batch(produced / loader.demand, 1.0) if produced and loader.demand else 0.0


def _first_batch(made: float, works: float) -> float:
    """Time of an epoch's first batch, ns. made: time per batch in one process, ns; works: fraction of it in which a CPU
    works."""
    return made + min(LOCKED, works * made)


def _processor(step: StepSummary, unmeasured: float, contention: Contention | None, usable: int) -> float:
    """CPU time of a step on all CPUs, ns: from the job's measured CPU use, else `unmeasured` divided by the CPUs."""
    if contention is not None and contention.job_cpu > 0:
        return step.duration.value * at_once(contention.job_cpu, contention) / at_once(usable, contention)
    return unmeasured / usable


def samples_per_step(case: Case) -> float | None:
    """Number of samples that a step reads from its loader, else rows of the model's inputs; None if unknown."""
    if case.loader is not None and case.loader.batch_size:
        return case.loader.batch_size * case.loader.demand
    return case.inputs.samples if case.inputs is not None else None
