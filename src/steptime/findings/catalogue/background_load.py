"""ST802: something else uses the CPUs."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_share

OTHERS = 0.1
"""Of the usable CPUs, and at least LEAST_CPU: what other processes may take before they are worth a word."""
LEAST_CPU = 0.2
"""CPUs: daemons and the shell together stay below."""
FULL = 0.85
"""Of the usable CPUs, used by the job and others together: below it they do not meet."""
PRESSURE = 10.0
"""Percent of time that some task waited for a CPU. Only asked when others run: the job's own threads cause pressure
too."""


@rule("ST802", "background-load", needs={Signal.STEP, Signal.CONTENTION}, weight=Weight.DOUBT)
def background_load(signals: Signals) -> Finding | None:
    """Other processes used the CPUs while this was measured

    What it means
        The machine was shared. Times of the host, of the loader and of CPU operators contain waiting for a CPU, and
        the largest account may be the one that suffered most, not the one to mend. The verdict becomes UNDECIDED; the
        findings stay as hints.

    How we know
        CPU time of the job's processes and of everything else is read once or twice a second, and the kernel's
        pressure figure where it exists. The rule fires when others took a tenth of the CPUs or more and CPUs were
        short.

    What helps
        Measure again when the machine is quiet, or on CPUs of its own (taskset, a cgroup, an exclusive job in the
        queue).

    When to ignore it
        When that load is always there in production too: then it is part of what is measured.
    """
    contention = signals.contention
    usable = max(1, contention.usable_cpus)
    if contention.other_cpu < max(LEAST_CPU, OTHERS * usable):
        return None
    full = (contention.job_cpu + contention.other_cpu) >= FULL * usable
    pressed = contention.pressure is None or contention.pressure >= PRESSURE
    if not (full and pressed):
        return None
    pressure = "" if contention.pressure is None else f", pressure {contention.pressure:.0f} %"
    summary = (
        f"Other processes used {contention.other_cpu:.1f} of {usable} CPUs{pressure}; "
        f"steps vary by {format_share(contention.spread)} (IQR)"
    )
    return background_load.finding(summary, "Measure again on a quiet machine or on CPUs of its own.")
