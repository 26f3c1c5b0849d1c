"""ST305: the device runs crumbs."""

from __future__ import annotations

from steptime.findings.case import KernelUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import first_source, longest, spent, told
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, named, ratio
from steptime.quantities import format_duration, format_share

TINY = 10_000.0
"""ns of a kernel: filling the device, starting and ending take 1 to 3 microseconds of every kernel, so that below ten
they are a considerable part of it."""
EMPTY_KERNEL = 1_500.0
"""ns that a kernel without work lasts by the device's own clock (1.2 to 2.2 microseconds on V100 to H100 traces: the
shortest fills of one number in them)."""
FEWEST = 100.0
"""A step: fewer kernels cost less than anybody will notice."""
LEAST_PART = 0.3
"""Of the device's busy time: else the large kernels are what to look at."""
HELD_BACK = 0.2
"""Of the step: from here on the host launches too slowly, and launch-bound says so with what is at stake there."""
FUSES_AT_LEAST, FUSES = 0.3, 0.6
"""Of the kernels: every third is gone when pairs of a chain of pointwise operators are fused here and there; compiling
a whole model commonly leaves less than half of them."""


@rule("ST305", "tiny-kernels", needs={Signal.STEP, Signal.KERNELS}, uses={Signal.ACCOUNTS, Signal.COMPILATIONS})
def tiny_kernels(signals: Signals) -> Finding | None:
    """The device is busy with kernels that are too small for it

    What it means
        Hundreds of kernels of a few microseconds each follow one another. Each one fills the device, works for a
        moment and drains it again; starting and ending costs more than the work, and no larger device makes it faster.

    How we know
        Kernels that take less than ten microseconds on average are added up. At stake is the part that a kernel without
        any work takes too, for as many kernels as fusing usually removes. The rule is silent where the host cannot
        launch them fast enough anyhow, which is ST302.

    What helps
        torch.compile, which fuses neighbours; foreach and fused optimisers; one batched operator for a loop over
        small ones; a larger batch, which makes kernels longer and not more.

    When to ignore it
        When the batch is small by design (inference for one request, reinforcement learning).
    """
    launch = named(signals.accounts, "launch")
    if launch is not None and ratio(launch.duration.value, signals.step.duration.value) >= HELD_BACK:
        return None
    tiny = [use for use in signals.kernels if ratio(use.duration, use.calls) < TINY]
    calls, busy = sum(use.calls for use in tiny), spent(tiny)
    if calls < FEWEST or ratio(busy, spent(signals.kernels)) < LEAST_PART:
        return None
    empty = sum(use.calls * min(EMPTY_KERNEL, ratio(use.duration, use.calls)) for use in tiny)
    summary = (
        f"{calls:.0f} kernels of {format_duration(ratio(busy, calls))} each take {format_duration(busy)} a step "
        f"({format_share(ratio(busy, signals.step.duration.value))})"
    )
    stake = modelled(FUSES * empty, FUSES_AT_LEAST * empty, empty, signals.step.steady)
    evidence = tuple(map(told, sorted(tiny, key=_calls, reverse=True)[:3]))
    return tiny_kernels.finding(
        summary, _advice(signals), stake, account="compute", source=first_source(longest(tiny)), evidence=evidence
    )


def _calls(use: KernelUse) -> float:
    return use.calls


def _advice(signals: Signals) -> str:
    if signals.has(Signal.COMPILATIONS):
        return "Part of the job is compiled: bring what runs eagerly into it, or batch small operators into one."
    return "Compile the model, and use a fused or foreach optimiser, so that neighbours become one kernel."
