"""ST401: chains of pointwise operators move bytes."""

from __future__ import annotations

from steptime.findings.case import MachineUse, OperatorUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.operator_time import profile_scale
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_bytes, format_duration, format_share

LEAST_SHARE = 0.25
"""Of the step: plain activations beside small matrix products reach a sixth on a CPU, and there is little to fuse."""
FEWEST_CALLS = 4.0
"""Fewer pointwise operators a step are no chain."""
FUSION_SAVES = 0.5
"""Of the bytes: the shortest chain, two operators in one, saves one write and one read of four. Longer chains save
more: (k - 1) / k."""
FUSION_SAVES_AT_LEAST = 0.3
"""Lower bound: operators with two inputs and values that backward needs have to be read or written all the same."""
POINTWISE = frozenset(
    {
        "_fused_dropout", "abs", "add", "addcdiv", "addcmul", "bernoulli", "bitwise_and", "clamp", "clamp_min", "cos",
        "div", "dropout", "elu", "eq", "erf", "exp", "fill", "ge", "gelu", "gelu_backward", "gt", "hardswish",
        "hardswish_backward", "hardtanh", "hardtanh_backward", "le", "leaky_relu", "leaky_relu_backward", "lerp",
        "log", "log1p", "logical_and", "lt", "masked_fill", "maximum", "minimum", "mish", "mul", "native_dropout",
        "ne", "neg", "pow", "reciprocal", "relu", "rsqrt", "rsub", "sigmoid", "sigmoid_backward", "sign", "silu",
        "silu_backward", "sin", "softplus", "softplus_backward", "sqrt", "square", "sub", "tanh", "tanh_backward",
        "threshold_backward", "where", "zero",
    }
)  # fmt: skip
"""Operators of ATen (without namespace, overload and the in-place underscore) that read and write element by
element."""


@rule(
    "ST401",
    "memory-bound-pointwise",
    needs={Signal.STEP, Signal.OPERATORS},
    uses={Signal.COMPILATIONS, Signal.MACHINE, Signal.ACCOUNTS},
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
        interval.

    What helps
        torch.compile fuses such chains; so do ready-made operators (scaled_dot_product_attention, layer_norm, a gelu
        in place of its formula), in-place operators where autograd allows them, and lower precision, which halves the
        bytes.

    When to ignore it
        When the tensors are small enough to stay in the cache: then dispatch is the price, see ST301 and ST302.
    """
    chain = [use for use in signals.operators if _counts(use)]
    profiled = sum(use.duration for use in chain)
    spent = profiled * profile_scale(signals.operators, signals.accounts)
    calls = sum(use.calls for use in chain)
    step = signals.step.duration.value
    if ratio(spent, step) < LEAST_SHARE or calls < FEWEST_CALLS:
        return None
    top = max(chain, key=_duration)
    summary = (
        f"{calls:.0f} pointwise operators take {format_duration(spent)} a step ({format_share(ratio(spent, step))})"
        f"{_traffic(chain, profiled, signals.machine if signals.has(Signal.MACHINE) else None)}"
    )
    stake = modelled(FUSION_SAVES * spent, FUSION_SAVES_AT_LEAST * spent, spent, signals.step.steady)
    evidence = tuple(f"{use.name}: {format_duration(use.duration)} in {use.calls:.3g} calls" for use in _largest(chain))
    return memory_bound_pointwise.finding(
        summary, _advice(signals), stake, account="compute", source=top.source, evidence=evidence
    )


def plain_name(name: str) -> str:
    """An operator's name without namespace, overload and in-place underscore: "aten::add_.Tensor" is "add"."""
    plain = name.rsplit("::", 1)[-1].split(".", 1)[0]
    return plain[:-1] if plain.endswith("_") and not plain.endswith("__") else plain


def _counts(use: OperatorUse) -> bool:
    return use.bound == "memory" and use.phase != "optimizer" and plain_name(use.name) in POINTWISE


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
