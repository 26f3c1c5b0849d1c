"""Kinds of kernels and operators, by operator name. Nothing is concluded about an operator in none of these sets."""

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
from steptime.trace.table import ABSENT, Trace

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
"""ATen operators (without namespace, overload and the in-place underscore) that read and write element by element."""
LABORIOUS = frozenset(
    {
        "_fused_dropout", "bernoulli", "cos", "dropout", "elu", "erf", "exp", "gelu", "gelu_backward", "log", "log1p",
        "mish", "native_dropout", "pow", "sigmoid", "silu", "silu_backward", "sin", "softplus", "softplus_backward",
        "tanh",
    }
)  # fmt: skip
"""Functions among these that take tens of instructions per element, or random numbers (4.7 ns for each of dropout's on
a CPU, by a profile): on a CPU they may be compute-bound."""
ARITHMETIC = 0.25
"""Fraction of the bandwidth below which such an operator is compute-bound, so that fusing does not help."""
MATRIX = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "einsum", "_scaled_mm", "_addmm_activation",
        "convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "miopen_convolution",
        "convolution_backward", "cudnn_convolution_backward", "cudnn_convolution_backward_input",
        "cudnn_convolution_backward_weight", "miopen_convolution_backward", "conv1d", "conv2d", "conv3d",
        "cudnn_convolution_add_relu", "cudnn_convolution_relu",
    }
)  # fmt: skip
"""Operators that multiply matrices, including convolutions."""
COPIES = frozenset({"copy", "_to_copy", "to", "clone", "contiguous"})
"""ATen operators that only change layout or dtype. Joins and gathers (cat, index) are left out, because models need
them."""
REACHABLE = 0.8
"""Fraction of a peak that a good kernel reaches (a large matmul of a vendor's library: 75 to 85 %)."""
EMPTY_KERNEL = 1_500.0
"""Time of an empty kernel on the device's own clock, ns (1.2 to 2.2 µs in traces of V100 to H100: their shortest
fills)."""
LONGEST_NAME = 60
"""Most characters of a kernel's name in a sentence."""
MOST_DIGITS, MOST_ELEMENTS = 12, 1 << 50
"""Limits for the digits of a dimension, and for the elements of a tensor (a petabyte)."""
_ROW = re.compile(r"\[([\d,\s]*)\]")


def plain_name(name: str) -> str:
    """Name of an operator without namespace, overload and in-place underscore: "aten::add_.Tensor" is "add"."""
    plain = name.rsplit("::", 1)[-1].split(".", 1)[0]
    return plain[:-1] if plain.endswith("_") and not plain.endswith("__") else plain


def tensor_core_name(device: str) -> str:
    """Vendor's name for the Tensor Cores of a device. device: name of the device."""
    return "matrix cores" if re.search(r"AMD|Instinct|Radeon", device) else "Tensor Cores"


def is_matmul(use: KernelUse) -> bool:
    """True if the kernel's operator multiplies matrices."""
    return plain_name(use.operator) in MATRIX


def shapes_of(text: str) -> tuple[tuple[int, ...], ...]:
    """Shapes in the raw text of a trace's "Input Dims", scalars as (); nested lists are read as their rows. Impossibly
    large dimensions count as 0."""
    return tuple(tuple(_side(part) for part in row.split(",") if part.strip()) for row in _ROW.findall(text))


def shapes_at(trace: Trace, row: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the inputs of an event; () where the trace has none."""
    at = int(trace.events.shapes[row])
    return shapes_of(trace.shapes[at]) if at != ABSENT else ()


def _side(part: str) -> int:
    return int(part) if len(part.strip()) <= MOST_DIGITS else 0


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a tensor with this shape, at most MOST_ELEMENTS."""
    return min(math.prod(shape), MOST_ELEMENTS)


def time_in(uses: Iterable[KernelUse]) -> float:
    """Time per step in all of these kernel groups, ns."""
    return sum(use.duration for use in uses)


@dataclass(frozen=True, slots=True)
class KernelName:
    """All kernels of one name. operators: operators that launch them, longest first; kinds: number of groups by
    operator and shape. calls: number per step; duration: ns per step. bound: bound of most of the duration."""

    name: str
    operators: tuple[str, ...]
    kinds: int
    calls: float
    duration: float
    bound: Bound


def by_name(uses: Iterable[KernelUse]) -> tuple[KernelName, ...]:
    """Kernels by name, over all operators and shapes, longest first."""
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
    return KernelName(name, operators, len(same), calls, time_in(same), bounds.most_common(1)[0][0])


def about_kernels(made: Rule, kernels: Sequence[KernelUse], summary: str, advice: str, saving: Estimate) -> Finding:
    """Finding about some kernels, with the longest ones as evidence."""
    evidence = tuple(map(as_evidence, longest(kernels)))
    source = first_source(kernels)
    return made.finding(summary, advice, saving, category="compute", source=source, evidence=evidence)


def above_peaks(uses: Iterable[KernelUse]) -> float:
    """Time per step that kernels take beyond good kernels for the same work, ns; those without a model count as
    good."""
    modelled = ((use.duration, use.at_roofline) for use in uses if use.at_roofline is not None)
    return sum(max(0.0, duration - best / REACHABLE) for duration, best in modelled)


def longest(uses: Iterable[KernelUse], count: int | None = 3) -> list[KernelUse]:
    """The `count` longest kernel groups; all of them for None."""
    return sorted(uses, key=lambda use: -use.duration)[:count]


def first_source(uses: Iterable[KernelUse]) -> SourceLine | None:
    """Line of the longest kernel that has one."""
    return next((use.source for use in longest(uses, 1000) if use.source is not None), None)


def as_evidence(use: KernelUse) -> str:
    """Text on a kernel group: "aten::mm [[64, 100], [100, 64]]: 1.20 ms in 24 calls, sgemm_128x64"."""
    shapes = f" {use.shapes}" if use.shapes else ""
    name = f", {short_kernel(use.name)}" if use.name else ""
    calls = format_count(use.calls, "call")
    measured = f"; by Nsight Compute {counter_words(use.counters)}" if use.counters is not None else ""
    return f"{use.operator or 'no operator'}{shapes}: {format_duration(use.duration)} in {calls}{name}{measured}"


def counter_words(counters: KernelCounters) -> str:
    """Text on a kernel's counters: "occupancy 12 % of at most 17 % (registers), memory 20 %, arithmetic 9 %, …"."""
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
    """Kernel's name without template arguments, return type and parameters."""
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ").split("<", 1)[0].split("(", 1)[0]
    short = plain.rsplit("::", 1)[-1] or name
    return short if len(short) <= LONGEST_NAME else f"{short[: LONGEST_NAME - 1]}…"


def moving(operators: Iterable[OperatorUse], machine: MachineUse | None) -> list[OperatorUse]:
    """Memory-bound pointwise operators of the model, without the optimizer's. Their bound is the bandwidth of a copy,
    or what plain operators reach here if that is less. Newly allocated tensors are slow to write (4 to 8 GB/s where a
    copy reached 41), whatever is computed."""
    waiting = (use for use in operators if use.bound == "memory" and use.phase != "optimizer")
    pointwise = [use for use in waiting if plain_name(use.name) in POINTWISE]
    reached = _rate([use for use in pointwise if plain_name(use.name) not in LABORIOUS])
    bandwidth = min(filter(None, (machine.copy_bytes if machine is not None else None, reached)), default=0.0)
    laborious = [use for use in pointwise if plain_name(use.name) in LABORIOUS and use.bytes]
    computing = {id(use) for use in laborious if _rate([use]) < ARITHMETIC * bandwidth}
    return [_without_recurrent(use) for use in pointwise if id(use) not in computing and use.recurrent < use.calls]


def _without_recurrent(use: OperatorUse) -> OperatorUse:
    """Operator without its calls in torch's recurrent layers, which are ready-made and which no compiler splits."""
    if not use.recurrent:
        return use
    left = 1 - use.recurrent / use.calls
    usual, moved = (None if each is None else each * left for each in (use.usual, use.bytes))
    return replace(use, calls=use.calls * left, duration=use.duration * left, usual=usual, bytes=moved)


def least_step(case: Case) -> float:
    """Lower bound on a step, ns, that no change of the code can beat: its matmuls on the accelerator at the largest
    rate of any dtype. 0 if unknown: on a CPU, whose rate depends on the threads; with checkpointing, whose
    recomputation is avoidable; with rates that were measured under load."""
    machine = case.machine
    if machine is None or case.step.device == "cpu" or machine.under_load or case.recompute is not None:
        return 0.0
    rate = max([machine.matrix_flops or 0.0, *(rate for _, rate in machine.rates)])
    needed = sum(use.flops or 0.0 for use in case.operators if plain_name(use.name) in MATRIX)
    return needed / rate * 1e9 if rate else 0.0


def _rate(operators: list[OperatorUse]) -> float:
    """Bytes per second of the operators whose bytes are known."""
    known = [use for use in operators if use.bytes]
    return ratio(sum(use.bytes or 0.0 for use in known), sum(use.duration for use in known)) * 1e9
