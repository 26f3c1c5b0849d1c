"""ST801: the job runs more threads than it has CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.findings.case import Contention, LoaderUse, SettingsUse, Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled
from steptime.findings.threads import fitting_threads
from steptime.quantities import format_share

TOLERATED = 1.5
"""Threads per CPU: up to here the scheduler copes (workers sleep part of the time)."""
BUSY = 0.85
"""Of the usable CPUs that other processes leave: below it, threads are more than CPUs but do not meet."""
BUSY_ALONE = 0.6
"""Where the threads of one operator exceed the CPUs: they wait for one another, asleep for a third of the time."""
WHOLE = 0.9
"""Of its time: a worker that needs a CPU for less counts with its share, and that is said."""
PRESSURE = 20.0
"""Percent of time that some task waited for a CPU: what one thread too many causes on a busy machine."""
UNSTABLE = 0.3
"""Spread of the steps (interquartile range over median): beyond it figures of this run cannot be compared with
another's."""


@rule(
    "ST801",
    "thread-oversubscription",
    needs={Signal.STEP, Signal.SETTINGS, Signal.CONTENTION},
    uses={Signal.LOADER},
)
def thread_oversubscription(signals: Signals) -> Iterator[Finding]:
    """The job itself runs more threads than it has CPUs

    What it means
        Each training process computes with its own threads, and the loader's workers come on top. When they are more
        than the CPUs, threads of one operator wait for each other while others run: steps become slow and irregular.

    How we know
        intra-op threads x training processes on this host + workers (of one whose items wait, the part of its time in
        which it needs a CPU), against the CPUs that the process may use
        (affinity and container limits counted); and the CPUs were in fact busy, or tasks waited for them. The ceiling
        is the share of the threads that have no CPU; how much of it is real only a trial tells, so the interval is
        wide.

    What helps
        OMP_NUM_THREADS (or torch.set_num_threads) = CPUs / training processes, minus what the workers need; fewer
        workers.

    When to ignore it
        When a device computes and the host's threads mostly sleep.
    """
    settings, contention = signals.settings, signals.contention
    workers = signals.loader.workers if signals.has(Signal.LOADER) else 0
    threads = max(1, settings.intra_op_threads) * max(1, settings.trainers_on_host)
    needed = workers * _busy(signals.loader) if workers else 0.0
    demand = (threads + needed * max(1, settings.trainers_on_host)) / max(1, settings.usable_cpus)
    alone = settings.intra_op_threads / max(1, settings.usable_cpus) > TOLERATED
    if demand <= TOLERATED or not _crowded(contention, BUSY_ALONE if alone else BUSY):
        return
    yield _finding(signals, demand, workers)
    if contention.spread > UNSTABLE:
        text = f"The job's own threads exceed the CPUs and steps vary by {format_share(contention.spread)} (IQR)"
        yield thread_oversubscription.finding(
            text, "Lower the number of threads and measure again.", weight=Weight.DOUBT
        )


def _busy(loader: LoaderUse) -> float:
    """CPUs that one worker needs while it makes a batch: a whole one where that was not measured."""
    return loader.busy if loader.busy is not None and loader.busy < WHOLE else 1.0


def _crowded(contention: Contention, enough: float) -> bool:
    left = max(1.0, contention.usable_cpus - contention.other_cpu)
    busy = contention.job_cpu >= enough * left
    return busy or (contention.pressure is not None and contention.pressure >= PRESSURE)


def _finding(signals: Signals, demand: float, workers: int) -> Finding:
    settings, step = signals.settings, signals.step.duration.value
    parts = f"{settings.intra_op_threads} threads"
    if settings.trainers_on_host > 1:
        parts += f" x {settings.trainers_on_host} training processes"
    if workers:
        busy = _busy(signals.loader)
        parts += f" + {workers} workers" + (f" at {format_share(busy)}" if busy < 1.0 else "")
    ceiling = step * (1 - 1 / demand)
    stake = modelled(ceiling / 2, ceiling / 10, ceiling, signals.step.steady)
    summary = f"{parts} on {settings.usable_cpus} usable CPUs: {demand:.1f} threads for each CPU"
    return thread_oversubscription.finding(summary, _advice(settings, signals, workers), stake)


def _advice(settings: SettingsUse, signals: Signals, workers: int) -> str:
    best = fitting_threads(settings, signals.loader if workers else None)
    if best < settings.intra_op_threads:
        if settings.omp_num_threads not in (None, str(settings.intra_op_threads)):
            return f"The job sets its threads itself: torch.set_num_threads({best})."
        return f"Set OMP_NUM_THREADS={best}."
    return (
        f"Use fewer workers than {_workers(signals.loader)}."
        if workers
        else "Run fewer training processes on this host."
    )


def _workers(loader: LoaderUse) -> int:
    return loader.workers
