"""ST302: dispatching costs more than computing."""

from __future__ import annotations

from steptime.findings.case import GapUse, OperatorUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, named, ratio
from steptime.quantities import Estimate, format_duration, format_share

LEAST_SHARE = 0.2
"""Of the step: every eager model dispatches; from a fifth on it is worth the trouble of compiling or batching."""


FEWEST_KERNELS = 10.0
"""A step on a device: beside fewer launches idle time has another cause, and compiling has little to fuse."""
ONE_GAP = 0.5
"""Of the idle time: a single gap that is half of it is no dispatch but one stall."""
STALL = 5e6
"""ns of that gap: loading a library, allocating, tuning take milliseconds and more, launches never do."""


@rule(
    "ST302",
    "launch-bound",
    needs={Signal.STEP, Signal.ACCOUNTS},
    uses={Signal.OPERATORS, Signal.COMPILATIONS, Signal.KERNELS, Signal.GAPS},
)
def launch_bound(signals: Signals) -> Finding | None:
    """The step is bound by dispatching its operators

    What it means
        The host cannot hand out the operators as fast as they are computed: Python, the dispatcher, autograd and (on
        CUDA) the launches take the time. Such a step stays as long with a larger batch or a faster device.

    How we know
        The ledger's launch account: on a CPU the time of the training thread around and between small operators; on an
        accelerator the time that it idles while the host is dispatching, with the operators and modules that it was
        dispatching in the largest gaps.

    What helps
        torch.compile; on CUDA its mode "reduce-overhead" (graphs); a larger batch, which carries more work per
        dispatch; fused optimisers; fewer, larger operators.

    When to ignore it
        When the batch is small for a reason (online learning, reinforcement learning) and the step is fast enough.
    """
    launch, step = named(signals.accounts, "launch"), signals.step
    if launch is None or ratio(launch.recoverable.value, step.duration.value) < LEAST_SHARE:
        return None
    kernels = sum(use.calls for use in signals.kernels if use.bound != "communication")
    calls = sum(operator.calls for operator in signals.operators)
    gaps = sorted((gap for gap in signals.gaps if gap.account == "launch"), key=_idle, reverse=True)
    busiest = max((use for use in signals.operators if use.source), key=_calls, default=None)
    share = format_share(ratio(launch.duration.value, step.duration.value))
    many = f" of {calls:.0f} operators" if calls else ""
    summary = f"Dispatch{many} takes {format_duration(launch.duration.value)} a step ({share})"
    if signals.has(Signal.KERNELS) and kernels < FEWEST_KERNELS:
        return None
    if gaps and gaps[0].longest >= max(STALL, ONE_GAP * launch.duration.value):
        return _stall(signals, gaps[0], launch.recoverable)
    if kernels:
        spent = sum(use.duration for use in signals.kernels if use.bound != "communication")
        each = ratio(spent, kernels)
        summary = (
            f"The device idles {format_duration(launch.duration.value)} a step ({share}) while the host launches "
            f"{kernels:.0f} kernels of {format_duration(each)}"
        )
    source = next((gap.source for gap in gaps if gap.source), busiest.source if busiest else None)
    evidence = tuple(f"{gap.cause or 'between operators'}: {_told(gap)}" for gap in gaps[:5])
    return launch_bound.finding(
        summary, _advice(signals), launch.recoverable, account="launch", source=source, evidence=evidence
    )


def _stall(signals: Signals, gap: GapUse, launch: Estimate) -> Finding:
    """One long gap: compiling would not shorten it."""
    share = format_share(ratio(gap.duration.value, signals.step.duration.value))
    longest = format_duration(gap.longest)
    summary = f"The device idles {longest} at once ({share} of a step) while {gap.cause or 'the host'} runs"
    advice = "If that is the job's start (libraries, tuning, first allocations), trace later steps; else look at it."
    stake = capped(gap.duration, launch)
    return launch_bound.finding(summary, advice, stake, account="launch", source=gap.source)


def _told(gap: GapUse) -> str:
    return f"{format_duration(gap.duration.value)} idle a step in {gap.count:.3g} gaps"


def _idle(gap: GapUse) -> float:
    return gap.duration.value


def _calls(operator: OperatorUse) -> float:
    return operator.calls


def _advice(signals: Signals) -> str:
    graphs = ' (mode="reduce-overhead")' if signals.step.device != "cpu" else ""
    if signals.has(Signal.COMPILATIONS):
        return (
            f"Part of the job is compiled: look for graph breaks and what is left eager{graphs}; or enlarge the batch."
        )
    return f"Compile the model{graphs}, or enlarge the batch so that each operator does more."
