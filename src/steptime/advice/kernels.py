"""Kinds of kernels and operators, by the operator's name. One that is in none of these sets is of no kind, and
nothing is concluded about it."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import Case
from steptime.advice.rule import Finding, Rule
from steptime.advice.savings import ratio
from steptime.analysis.op_cost.op_cost import Bound
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.quantities import Estimate, SourceLine, format_count, format_duration, format_share
from steptime.trace.nsight_compute import KernelCounters

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
LABORIOUS = frozenset(
    {
        "_fused_dropout", "bernoulli", "cos", "dropout", "elu", "erf", "exp", "gelu", "gelu_backward", "log", "log1p",
        "mish", "native_dropout", "pow", "sigmoid", "silu", "silu_backward", "sin", "softplus", "softplus_backward",
        "tanh",
    }
)  # fmt: skip
"""Functions among these that take tens of instructions an element, and random numbers (4.7 ns for each of dropout's on
a CPU, by a profile): on a processor they may be bound by arithmetic."""
ARITHMETIC = 0.25
"""Fraction of the bandwidth: below it an operator that takes tens of instructions an element waits for its own
arithmetic, which fusing leaves."""
MATRIX = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "einsum", "_scaled_mm", "_addmm_activation",
        "convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "miopen_convolution",
        "convolution_backward", "cudnn_convolution_backward", "cudnn_convolution_backward_input",
        "cudnn_convolution_backward_weight", "miopen_convolution_backward", "conv1d", "conv2d", "conv3d",
        "cudnn_convolution_add_relu", "cudnn_convolution_relu",
    }
)  # fmt: skip
"""Operators that multiply matrices, convolutions among them."""
COPIES = frozenset({"copy", "_to_copy", "to", "clone", "contiguous"})
"""Operators of ATen that only move data to another layout or type. Joins and gathers (cat, index) are left out: models
need them."""
REACHABLE = 0.8
"""Fraction of an upper bound: what a good kernel reaches of it (a large matrix product of a vendor's library, 75 to 85
%)."""
EMPTY_KERNEL = 1_500.0
"""ns that a kernel without work lasts by the device's own clock (1.2 to 2.2 microseconds on V100 to H100 traces: the
shortest fills of one number in them)."""
LONGEST_NAME = 60
"""Signs of a kernel's name in a sentence."""
MOST_DIGITS, MOST_ELEMENTS = 12, 1 << 50
"""Limits of a side, and of a tensor: a petabyte."""
_ROW = re.compile(r"\[([\d,\s]*)\]")


def plain_name(name: str) -> str:
    """An operator's name without namespace, overload and in-place underscore: "aten::add_.Tensor" is "add"."""
    plain = name.rsplit("::", 1)[-1].split(".", 1)[0]
    return plain[:-1] if plain.endswith("_") and not plain.endswith("__") else plain


def matrix_units(device: str) -> str:
    """Name that the maker of a device gives its matrix units. device: its name."""
    if re.search(r"AMD|Instinct|Radeon", device):
        return "matrix cores"
    return "Tensor Cores" if re.search(r"NVIDIA|Tesla|GeForce|Quadro", device) else "matrix units"


def is_matrix_product(use: KernelUse) -> bool:
    """True if an operator that multiplies matrices launched it, or is named in it (a compiled region's own)."""
    return plain_name(use.operator) in MATRIX


def shapes_of(text: str) -> tuple[tuple[int, ...], ...]:
    """The shapes in the raw text of a trace's "Input Dims", scalars as (); nested lists are read as their rows. Sides
    that no tensor has count as 0."""
    return tuple(tuple(_side(part) for part in row.split(",") if part.strip()) for row in _ROW.findall(text))


def _side(part: str) -> int:
    return int(part) if len(part.strip()) <= MOST_DIGITS else 0


def elements(shape: tuple[int, ...]) -> int:
    """How many numbers a tensor of this shape holds."""
    return min(math.prod(shape), MOST_ELEMENTS)


def spent(uses: Iterable[KernelUse]) -> float:
    """ns per step in all of them."""
    return sum(use.duration for use in uses)


@dataclass(frozen=True, slots=True)
class KernelName:
    """All kernels of one name. operators: that launch it, those with most of its time first; kinds: groups of it, by
    operator and shape. bound: of most of its time."""

    name: str
    operators: tuple[str, ...]
    kinds: int
    calls: float
    duration: float
    bound: Bound


def by_name(uses: Iterable[KernelUse]) -> tuple[KernelName, ...]:
    """The kernels by their names, whatever their operators and shapes, the longest first."""
    groups: dict[str, list[KernelUse]] = defaultdict(list)
    for use in longest(uses, None):
        groups[use.name].append(use)
    return tuple(sorted(starmap(_named, groups.items()), key=lambda each: -each.duration))


def _named(name: str, same: list[KernelUse]) -> KernelName:
    bounds = Counter[Bound]()
    for use in same:
        bounds[use.bound] += round(use.duration)
    operators = tuple(dict.fromkeys(use.operator for use in same if use.operator))
    calls = sum(use.calls for use in same)
    return KernelName(name, operators, len(same), calls, spent(same), bounds.most_common(1)[0][0])


def about_kernels(made: Rule, kernels: Sequence[KernelUse], summary: str, advice: str, saving: Estimate) -> Finding:
    """A finding about kernels, the longest of which are its evidence."""
    evidence = tuple(map(as_evidence, longest(kernels)))
    source = first_source(kernels)
    return made.finding(summary, advice, saving, category="compute", source=source, evidence=evidence)


def above_peaks(uses: Iterable[KernelUse]) -> float:
    """ns per step above what good kernels would take for the same work; those without a model count as good."""
    modelled = ((use.duration, use.at_roofline) for use in uses if use.at_roofline is not None)
    return sum(max(0.0, duration - best / REACHABLE) for duration, best in modelled)


def longest(uses: Iterable[KernelUse], count: int | None = 3) -> list[KernelUse]:
    """Those with the most time."""
    return sorted(uses, key=lambda use: -use.duration)[:count]


def first_source(uses: Iterable[KernelUse]) -> SourceLine | None:
    """The line behind the longest kernel that has one."""
    return next((use.source for use in longest(uses, 1000) if use.source is not None), None)


def as_evidence(use: KernelUse) -> str:
    """A kernel group as evidence: "aten::mm [[64, 100], [100, 64]]: 1.20 ms in 24 calls, sgemm_128x64"."""
    shapes = f" {use.shapes}" if use.shapes else ""
    name = f", {short_kernel(use.name)}" if use.name else ""
    calls = format_count(use.calls, "call")
    measured = f"; by Nsight Compute {counter_words(use.counters)}" if use.counters is not None else ""
    return f"{use.operator or 'no operator'}{shapes}: {format_duration(use.duration)} in {calls}{name}{measured}"


def counter_words(counters: KernelCounters) -> str:
    """The counters in a line: "occupancy 12 % of at most 17 % (registers), memory 20 %, arithmetic 9 %, …"."""
    most = f" of at most {format_share(counters.possible)}" if counters.possible is not None else ""
    need = f" ({counters.limit})" if most and counters.limit else ""
    message = [f"occupancy {format_share(counters.occupancy)}{most}{need}"] if counters.occupancy is not None else []
    message += [f"memory {format_share(counters.memory)}"] if counters.memory is not None else []
    message += [f"DRAM {format_share(counters.dram)}"] if counters.dram is not None else []
    message += [f"arithmetic {format_share(counters.compute)}"] if counters.compute is not None else []
    if counters.stalled:
        message.append(f"{format_share(counters.stalled)} of the cycles waiting for {counters.stall}")
    return ", ".join(message)


def short_kernel(name: str) -> str:
    """A kernel's name without its template arguments, return type and parameters."""
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ").split("<", 1)[0].split("(", 1)[0]
    short = plain.rsplit("::", 1)[-1] or name
    return short if len(short) <= LONGEST_NAME else f"{short[: LONGEST_NAME - 1]}…"


def moving(operators: Iterable[OperatorUse], machine: MachineUse | None) -> list[OperatorUse]:
    """Those of the model that wait for memory. The optimizer's are not the model's.

    The bandwidth is that of a copy, or what the plain ones reach here, where that is less: tensors whose memory is new
    each time are slow to write (4 to 8 GB/s where a copy reached 41), whatever is computed.
    """
    waiting = (use for use in operators if use.bound == "memory" and use.phase != "optimizer")
    pointwise = [use for use in waiting if plain_name(use.name) in POINTWISE]
    reached = _rate([use for use in pointwise if plain_name(use.name) not in LABORIOUS])
    bandwidth = min(filter(None, (machine.copy_bytes if machine is not None else None, reached)), default=0.0)
    laborious = [use for use in pointwise if plain_name(use.name) in LABORIOUS and use.bytes]
    computing = {id(use) for use in laborious if _rate([use]) < ARITHMETIC * bandwidth}
    return [_without_recurrent(use) for use in pointwise if id(use) not in computing and use.recurrent < use.calls]


def _without_recurrent(use: OperatorUse) -> OperatorUse:
    """Without the calls in torch's recurrent layers, which are ready-made, and which no compiler takes apart."""
    if not use.recurrent:
        return use
    left = 1 - use.recurrent / use.calls
    usual, moved = (None if each is None else each * left for each in (use.usual, use.bytes))
    return replace(use, calls=use.calls * left, duration=use.duration * left, usual=usual, bytes=moved)


def least_step(case: Case) -> float:
    """ns that the matrix products of a step need on its accelerator at the largest rate of any format, the roofline
    that no change of the training's code gets under; 0 where that is not known. On a CPU the rate is one of so many
    threads, which a change may change; what is computed twice (checkpointing) need not be; rates that other load
    disturbed may be too low."""
    machine = case.machine
    if machine is None or case.step.device == "cpu" or machine.under_load or case.recompute is not None:
        return 0.0
    rate = max([machine.matrix_flops or 0.0, *(rate for _, rate in machine.rates)])
    needed = sum(use.flops or 0.0 for use in case.operators if plain_name(use.name) in MATRIX)
    return needed / rate * 1e9 if rate else 0.0


def _rate(operators: list[OperatorUse]) -> float:
    """B/s of those whose bytes are known."""
    known = [use for use in operators if use.bytes]
    return ratio(sum(use.bytes or 0.0 for use in known), sum(use.duration for use in known)) * 1e9
