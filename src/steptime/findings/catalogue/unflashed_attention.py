"""ST405: attention that writes its matrix of weights to memory."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.findings.case import KernelUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import (
    MATRIX,
    POINTWISE,
    elements,
    first_source,
    longest,
    plain_name,
    shapes_of,
    spent,
    told,
)
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_duration, format_share

SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax", "_softmax_backward_data", "_masked_softmax"})
"""Forward and backward, with or without a mask."""
BETWEEN = POINTWISE | {"copy", "clone", "_to_copy", "masked_fill", "tril", "triu"}
"""What stands between the two products: scale, mask, dropout, casts."""
SHORTEST = 32
"""Of a sequence: a softmax over fewer is the one of a classifier, or too small to matter."""
SURE, MOST = 0.5, 1.3
"""Of the passes over the weights: a fused kernel still computes them, from memory on the chip; above all of it, because
the two products no longer write and read them either."""


@rule(
    "ST405",
    "unflashed-attention",
    needs={Signal.STEP, Signal.KERNELS},
    instead_of=("memory-bound-pointwise", "dominant-operator"),
)
def unflashed_attention(signals: Signals) -> Finding | None:
    """Attention writes its weights to memory and reads them back

    What it means
        A product, a softmax and another product compute attention step by step: the matrix of weights, a row per query
        and a column per key, goes to memory and back several times. It grows with the square of the sequence.

    How we know
        A softmax over a tensor whose last two dimensions are those of the result of a batched matrix product in the
        same step, and every pointwise operator on tensors of just that size. The shapes are in the trace; without
        them (record_shapes) this is not seen. At stake is the time of these passes; the products stay.

    What helps
        torch.nn.functional.scaled_dot_product_attention, which picks a fused kernel; in transformers
        attn_implementation="sdpa" or "flash_attention_2". It falls back to the slow path for float32 masks of some
        shapes, for head sizes above 256, and on old devices.

    When to ignore it
        When the weights themselves are needed (to look at them, or for a loss on them).
    """
    weights = _weights(signals.kernels)
    passes = [use for use in signals.kernels if _passes_over(use, weights)]
    if not passes:
        return None
    queries, keys = max(weights)
    time = spent(passes)
    share = format_share(ratio(time, signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in passes):.4g} passes over attention weights ({queries} x {keys}) take "
        f"{format_duration(time)} a step ({share})"
    )
    stake = modelled(time, SURE * time, MOST * time, signals.step.steady)
    return unflashed_attention.finding(
        summary,
        "Use torch.nn.functional.scaled_dot_product_attention, which fuses them.",
        stake,
        account="compute",
        source=first_source(passes),
        evidence=tuple(map(told, longest(passes))),
    )


def _weights(kernels: Iterable[KernelUse]) -> frozenset[tuple[int, int]]:
    """(queries, keys) of every softmax whose input is as large as the result of a batched product."""
    kernels = tuple(kernels)
    products = {_product(use) for use in kernels if plain_name(use.operator) in {"bmm", "baddbmm"}}
    found = set()
    for use in kernels:
        shapes = shapes_of(use.shapes)
        if plain_name(use.operator) not in SOFTMAX or not shapes or len(shapes[0]) < 3:
            continue
        queries, keys = shapes[0][-2:]
        if min(queries, keys) >= SHORTEST and (elements(shapes[0]), queries, keys) in products:
            found.add((queries, keys))
    return frozenset(found)


def _product(use: KernelUse) -> tuple[int, int, int]:
    """(elements, rows, columns) of the result of a batched matrix product."""
    shapes = [shape for shape in shapes_of(use.shapes) if len(shape) == 3]
    if len(shapes) < 2:
        return (0, 0, 0)
    left, right = shapes[-2:]
    return (left[0] * left[1] * right[2], left[1], right[2])


def _passes_over(use: KernelUse, weights: frozenset[tuple[int, int]]) -> bool:
    """Whether a kernel that multiplies no matrices works on a whole matrix of weights."""
    name = plain_name(use.operator)
    shapes = shapes_of(use.shapes)
    whole = bool(shapes) and len(shapes[0]) >= 3 and shapes[0][-2:] in weights
    return whole and name not in MATRIX and (name in SOFTMAX or name in BETWEEN)
