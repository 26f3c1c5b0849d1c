"""ST401: chains of pointwise operators move bytes."""

from __future__ import annotations

from steptime.findings.case import ChainUse, MachineUse, OperatorUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.operator_time import steady_time
from steptime.findings.pointwise_operators import moving
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_bytes, format_duration, format_share

LEAST_SHARE = 0.2
"""Of the step: plain activations beside small matrix products reach a sixth on a CPU, and there is little to fuse; five
recordings of a planted chain showed 23 to 37 %."""
FILL = "fill"
"""Of every new tensor under deterministic algorithms: theirs to answer for (ST603), and no link of a chain."""
FEWEST_CALLS = 4.0
"""Fewer pointwise operators a step are no chain."""
FUSION_SAVES = 0.5
"""Of the bytes: the shortest chain, two operators in one, saves one write and one read of four. Longer chains save
more: (k - 1) / k."""
FUSION_SAVES_AT_LEAST = 0.3
"""Lower bound: operators with two inputs and values that backward needs have to be read or written all the same."""
NOT_FOR_BACKWARD = 0.75
"""Of what tensors in between cost: every other one is kept for backward, where a fused kernel still writes it once and
only saves the reading."""


@rule(
    "ST401",
    "memory-bound-pointwise",
    needs={Signal.STEP, Signal.OPERATORS},
    uses={Signal.COMPILATIONS, Signal.MACHINE, Signal.ACCOUNTS, Signal.CHAINS, Signal.SETTINGS},
)
def memory_bound_pointwise(signals: Signals) -> Finding | None:
    """Chains of pointwise operators move bytes and compute nothing

    What it means
        Activations, norms, masks and arithmetic between the matrix products read a whole tensor and write a whole
        tensor each; the memory is busy, the arithmetic units are idle.

    How we know
        Each operator's floating-point operations and bytes are computed from its shapes and set against the ceilings
        of this machine. Those that are pointwise and below the machine's balance are added up, without the optimiser.
        Fusing a chain of k keeps one of k passes over memory; half of the time is the promise, 30 % to all of it the
        interval. A transcendental function (tanh, exp, gelu) or random numbers (dropout) that a processor makes at less
        than a quarter of its bandwidth, or of what plain operators reach beside it, are bound by arithmetic, which
        fusing leaves, and do not count. A device's trace shows the chains themselves: kernels in a row on tensors of
        one size. There the bytes of the tensors in between, which a fused kernel neither writes nor reads, are at
        stake.

    What helps
        torch.compile fuses such chains; so do ready-made operators (scaled_dot_product_attention, layer_norm, a gelu
        in place of its formula), in-place operators where autograd allows them, and lower precision, which halves the
        bytes.

    When to ignore it
        When the tensors are small enough to stay in the cache: then dispatch is the price, see ST301 and ST302.
    """
    if signals.has(Signal.CHAINS):
        return _from_chains(signals)
    forced = FILL if signals.has(Signal.SETTINGS) and signals.settings.deterministic else ""
    machine = signals.machine if signals.has(Signal.MACHINE) else None
    chain = [use for use in moving(signals.operators, machine) if plain_name(use.name) != forced]
    profiled = sum(use.duration for use in chain)
    spent = steady_time(chain, signals.operators, signals.accounts, machine)
    calls = sum(use.calls for use in chain)
    step = signals.step.duration.value
    if ratio(spent, step) < LEAST_SHARE or calls < FEWEST_CALLS:
        return None
    top = max(chain, key=_duration)
    summary = (
        f"{calls:.0f} pointwise operators take {format_duration(spent)} a step ({format_share(ratio(spent, step))})"
        f"{_traffic(chain, profiled, machine)}"
    )
    stake = modelled(FUSION_SAVES * spent, FUSION_SAVES_AT_LEAST * spent, spent, signals.step.steady)
    evidence = tuple(f"{use.name}: {format_duration(use.duration)} in {use.calls:.3g} calls" for use in _largest(chain))
    return memory_bound_pointwise.finding(
        summary, _advice(signals), stake, account="compute", source=top.source, evidence=evidence
    )


def _from_chains(signals: Signals) -> Finding | None:
    """By the kernels that follow one another: what the tensors in between cost."""
    duration = sum(chain.duration for chain in signals.chains)
    wasted = sum(_wasted(chain) for chain in signals.chains)
    moved, saved = sum(chain.bytes for chain in signals.chains), sum(chain.saved for chain in signals.chains)
    kernels = sum(chain.kernels for chain in signals.chains)
    share = format_share(ratio(duration, signals.step.duration.value))
    summary = (
        f"{kernels:.0f} pointwise kernels in chains take {format_duration(duration)} a step ({share}); "
        f"fused, they move {format_bytes(moved - saved)}, not {format_bytes(moved)}"
    )
    stake = modelled(NOT_FOR_BACKWARD * wasted, FUSION_SAVES_AT_LEAST * wasted, wasted, signals.step.steady)
    top = sorted(signals.chains, key=_wasted, reverse=True)
    evidence = tuple(f"{' → '.join(map(plain_name, chain.operators[:6]))}: {_told(chain)}" for chain in top[:3])
    source = next((chain.source for chain in top if chain.source is not None), None)
    return memory_bound_pointwise.finding(
        summary, _advice(signals), stake, account="compute", source=source, evidence=evidence
    )


def _wasted(chain: ChainUse) -> float:
    return chain.duration * ratio(chain.saved, chain.bytes)


def _told(chain: ChainUse) -> str:
    return (
        f"{format_duration(chain.duration)} in {chain.calls:.3g} chains a step, {format_bytes(chain.saved)} in between"
    )


def _duration(use: OperatorUse) -> float:
    return use.duration


def _largest(chain: list[OperatorUse]) -> list[OperatorUse]:
    return sorted(chain, key=_duration, reverse=True)[:3]


def _traffic(chain: list[OperatorUse], profiled: float, machine: MachineUse | None) -> str:
    moved = sum(use.bytes or 0.0 for use in chain)
    if not moved:
        return ""
    rate = f" at {format_bytes(ratio(moved, profiled) * 1e9)}/s" if machine is not None and machine.copy_bytes else ""
    return f", moving {format_bytes(moved)}{rate}"


def _advice(signals: Signals) -> str:
    if signals.has(Signal.COMPILATIONS):
        return (
            "The job compiles, but these ran eagerly: bring them into the compiled part, or use ready-made operators."
        )
    return "Compile the model so that they are fused, or use ready-made operators (gelu, layer_norm, attention)."
