"""ST807: a job on a device whose trace does not show the device."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals


@rule("ST807", "device-not-traced", needs={Signal.STEP}, weight=Weight.DOUBT)
def device_not_traced(signals: Signals) -> Finding | None:
    """The trace shows that kernels were launched, and none of them

    What it means
        The job ran on a device, but the profiler recorded the host only. What looks like computing here is the host
        that launches; whether the device was busy meanwhile is not known.

    How we know
        The trace holds calls that launch kernels (cudaLaunchKernel, hipLaunchKernel, graphs) and no kernel, copy or
        fill.

    What helps
        Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (also for AMD). When that was asked for,
        the device's tracer did not start: another profiler or a monitoring daemon holds it (CUPTI serves one at a
        time), or the driver does not allow it.

    When to ignore it
        When only the host's side was meant to be looked at.
    """
    if not signals.step.untraced:
        return None
    return device_not_traced.finding(
        f"The trace holds {signals.step.untraced:.0f} launches a step and no kernel: the device was not recorded",
        "Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    )
