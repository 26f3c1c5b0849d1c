"""ST702: memory grows with the steps."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.memory_signals import KeeperUse
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_bytes


@rule("ST702", "memory-leak", needs={Signal.STEP, Signal.MEMORY}, weight=Weight.NOTE)
def memory_leak(signals: Signals) -> Finding | None:
    """Memory grows with every step

    What it means
        Each step leaves something behind: a list of outputs or losses, a running sum that drags its graph along, a hook
        or a closure that keeps activations. The job ends when memory does.

    How we know
        Memory is sampled about five times a second. Its slope over the steps is the median of all pairs' (Theil and
        Sen), with an interval from a bootstrap of blocks; the first quarter of the run and the windows of our own
        profiler are left out. The rule fires when the interval lies above zero, a megabyte has come together, and the
        series keeps rising: a sawtooth does not, nor does a cache that fills up. Who keeps it is asked of Python's
        garbage collector at three borders of steps, a few steps apart.

    What helps
        Keep numbers, not tensors: `total += loss.detach()`, `losses.append(loss.item())` now and then. Remove hooks
        when they have served; empty what is collected.

    When to ignore it
        When something is meant to grow: a replay buffer that is filling up, a cache with a limit.
    """
    use = signals.memory
    if not use.grows or use.growth is None:
        return None
    growth = use.growth
    keeper = use.keepers[0] if use.keepers else None
    summary = f"Memory grows by {format_bytes(growth.value)} a step, {format_bytes(use.grown)} so far"
    if keeper is not None and keeper.name:
        summary += f": {keeper.kind} {keeper.name}"
    interval = f"The growth lies between {format_bytes(growth.low)} and {format_bytes(growth.high)} a step."
    evidence = (interval, *map(_told, use.keepers))
    source = keeper.source if keeper is not None else None
    return memory_leak.finding(summary, _advice(keeper), source=source, evidence=evidence)


def _told(keeper: KeeperUse) -> str:
    named = f"The {keeper.kind} {keeper.name}" if keeper.kind else "Something that was not found"
    kept = f"keeps {keeper.tensors:.3g} tensors more with every step" if keeper.tensors >= 1 else "is a sum that grows"
    return f"{named} {kept}{', with their graphs of autograd' if keeper.graph else ''}."


def _advice(keeper: KeeperUse | None) -> str:
    if keeper is None:
        return "Nothing that Python keeps was seen to grow: look for buffers of extensions, loaders and loggers."
    name = keeper.name or "it"
    if keeper.kind == "hook":
        return f"The hook keeps what it is given in {name}: keep less, or remove it with handle.remove()."
    if keeper.graph:
        return f"Keep what {name} needs without its graph: .detach(), or .item() once in a while."
    return f"Empty {name}, or keep less in it."
