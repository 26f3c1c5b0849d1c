"""ST808: a variable holds the operators to fewer threads than there are idle CPUs for."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.operator_time import profile_scale
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled
from steptime.findings.threads import at_once, fitting_threads, idle_cpus
from steptime.quantities import format_duration

SPEEDUP = 2
"""So many times as many threads must fit, and so many must there be CPUs idle for: less is lost again at the borders
of each operator."""
SPREADING = ("compute", "memory")
"""What bounds an operator that spreads over threads: one thread does not fill the memory's bandwidth. Those bound by
their own latency are too small to be shared."""
LIKELY, SURE = 0.5, 0.1
"""Of the ceiling: how well an operator spreads over threads is not known before it is tried."""


@rule(
    "ST808",
    "too-few-threads",
    needs={Signal.STEP, Signal.SETTINGS, Signal.OPERATORS, Signal.CONTENTION},
    uses={Signal.LOADER, Signal.ACCOUNTS},
)
def too_few_threads(signals: Signals) -> Finding | None:
    """Operators are held to fewer threads than there are CPUs idle

    What it means
        OMP_NUM_THREADS limits the threads that one operator computes with. torchrun sets it to 1 for every process
        where the user has not, which suits training on devices; a job that computes on the CPU then leaves the others
        idle.

    How we know
        The variable is set, and torch follows it; at least twice as many threads would fit the CPUs that the process
        may use (its share of them where several training processes run on this host, one left to a loader's workers);
        and that many CPUs were idle in fact. At stake is the time of the operators that arithmetic or memory
        bounds, which spreads over threads; how much of it is real only a trial tells, so the interval is wide.

    What helps
        OMP_NUM_THREADS = CPUs / training processes.

    When to ignore it
        When the idle CPUs belong to somebody else, or the step consists of operators too small to be shared.
    """
    settings, step = signals.settings, signals.step
    loader = signals.loader if signals.has(Signal.LOADER) else None
    best, threads = fitting_threads(settings, loader), max(1, settings.intra_op_threads)
    if settings.omp_num_threads != str(threads) or best < SPEEDUP * threads or step.device != "cpu":
        return None
    if idle_cpus(signals.contention) < (best - threads) / SPEEDUP:
        return None
    profiled = sum(operator.duration for operator in signals.operators if operator.bound in SPREADING)
    spent = profiled * profile_scale(signals.operators, signals.accounts)
    ceiling = spent * (1 - at_once(threads, signals.contention) / at_once(best, signals.contention))
    if not ceiling:
        return None
    summary = (
        f"OMP_NUM_THREADS={threads} holds operators of {format_duration(spent)} a step to {threads} of {best} CPUs"
    )
    stake = modelled(LIKELY * ceiling, SURE * ceiling, ceiling, step.steady)
    return too_few_threads.finding(summary, f"Set OMP_NUM_THREADS={best}.", stake, account="compute")
