"""How many threads of one operator there are CPUs for, and what many CPUs do at once."""

from __future__ import annotations

from steptime.findings.case import Contention, LoaderUse, SettingsUse


def fitting_threads(settings: SettingsUse, loader: LoaderUse | None) -> int:
    """Each training process gets its share of the CPUs, and leaves one to the loader's workers where it has some."""
    share = settings.usable_cpus // max(1, settings.trainers_on_host)
    return max(1, share - (1 if loader is not None and loader.workers else 0))


def idle_cpus(contention: Contention) -> float:
    """CPUs that neither the job nor others used."""
    return max(0.0, contention.usable_cpus - contention.other_cpu - contention.job_cpu)


def at_once(busy: float, contention: Contention) -> float:
    """What so many busy CPUs do, in CPUs of which one works alone: as many where it was not measured.

    The usable ones together do what was measured. Cores have two hyperthreads at most (Intel, AMD), and a scheduler
    fills cores first: half of the CPUs work as if alone where all together do no less than that.
    """
    usable, together = contention.usable_cpus, contention.together
    if together is None or together <= 0 or usable < 1:
        return busy
    half = usable / 2
    if together <= half or usable == 1:
        return busy * together / usable
    return busy if busy <= half else half + (min(busy, usable) - half) * (together - half) / (usable - half)
