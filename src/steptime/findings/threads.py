"""How many threads of one operator there are CPUs for."""

from __future__ import annotations

from steptime.findings.case import Contention, LoaderUse, SettingsUse


def fitting_threads(settings: SettingsUse, loader: LoaderUse | None) -> int:
    """Each training process gets its share of the CPUs, and leaves one to the loader's workers where it has some."""
    share = settings.usable_cpus // max(1, settings.trainers_on_host)
    return max(1, share - (1 if loader is not None and loader.workers else 0))


def idle_cpus(contention: Contention) -> float:
    """CPUs that neither the job nor others used."""
    return max(0.0, contention.usable_cpus - contention.other_cpu - contention.job_cpu)
