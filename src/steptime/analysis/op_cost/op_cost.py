"""Cost of one operator call, from the shapes and types in the trace, and what bounds it on a machine: the roofline of
its peaks (Williams, Waterman, Patterson 2009).

FLOPs: those of matmuls, convolutions, attention and recurrent layers, a multiply and an add counted as two, as
torch.utils.flop_counter counts them; zero for operators whose arithmetic never binds. Bytes: each input read once and
each output written once, which is the least that must move when nothing stays in a cache; temporaries of an operator
do not count. docs/reading-a-report.md has the definitions; each family of operators has a module of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from steptime.analysis.op_cost import layers, memory_bound, products
from steptime.analysis.op_cost.call import LIST, Call, Model, OpCost, parse
from steptime.arrays import Float64, Int64, Numbers, distinct
from steptime.machine.machine import Machine
from steptime.quantities import Estimate
from steptime.trace.table import ABSENT, Trace
from steptime.trace.vendors import of_symbols

Bound: TypeAlias = Literal["compute", "memory", "latency", "communication", "unmodelled"]
"""Names of what bounds an operator or a kernel. latency: its work takes less time than dispatching it."""
COMPUTE: Final = "compute"
MEMORY: Final = "memory"
LATENCY: Final = "latency"
UNMODELLED: Final = "unmodelled"


def time_at_peaks(work: OpCost | None, machine: Machine | None) -> tuple[float, float] | None:
    """(ns of the arithmetic at the matmul peak, ns of the bytes at the copy peak) for one call's work; None without a
    cost model or a needed peak."""
    if work is None or work.flops is None or machine is None or machine.copy is None:
        return None
    rate = machine.matrix_rate(work.dtype) if work.flops else None
    if work.flops and not rate:
        return None
    arithmetic = work.flops / rate * 1e9 if rate else 0.0
    return arithmetic, work.bytes / machine.copy.value * 1e9


def bound_of(work: OpCost | None, machine: Machine | None) -> Bound:
    """Bound of a call: the slower of arithmetic and memory, or latency if both take less time than dispatching."""
    overhead = (machine.launch or machine.dispatch) if machine is not None else None
    return bound_of_times(time_at_peaks(work, machine), overhead)


def bound_of_times(times: tuple[float, float] | None, overhead: Estimate | None) -> Bound:
    """Bound of a call from its times. times: (ns of arithmetic, ns of movement) at the peaks, overhead: ns of
    dispatching; None if unknown."""
    if times is None:
        return UNMODELLED
    if max(times) < overhead.value if overhead is not None else max(times) <= 0:
        return LATENCY
    return COMPUTE if times[0] >= times[1] else MEMORY


MODELS: dict[str, Model] = {
    **memory_bound.ELEMENTWISE,
    **memory_bound.REDUCTION,
    **memory_bound.MOVEMENT,
    **memory_bound.OPTIMIZER,
    **products.MATMUL,
    **layers.CONVOLUTION,
    **products.ATTENTION,
    **layers.RECURRENT,
}
"""Models by the operator's name without namespace, overload and in-place mark."""

VALUED = frozenset().union(
    memory_bound.REDUCTION,
    memory_bound.MOVEMENT,
    layers.CONVOLUTION,
    products.ATTENTION,
    ("_scaled_mm", "_scaled_grouped_mm"),
)


def work_of(name: str, shapes: str, types: str, inputs: str, *, list_item: int = 4) -> OpCost | None:
    """Cost of one call; None if there is no model of the operator, or if arguments that the model needs are missing.
    shapes, types, inputs: raw JSON of "Input Dims", "Input type" and "Concrete Inputs" ("" for none). list_item: bytes
    per element in tensor lists, which a trace does not contain."""
    model = _model(name)
    if model is None or not shapes:
        return None
    try:
        return model(parse(shapes, types, inputs, in_place=_base(name).endswith("_"), list_item=list_item))
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def depends_on_values(name: str) -> bool:
    """True if an operator's cost depends on more than shapes and types: strides, masks, dimensions to sum over.
    Arguments that change from call to call without changing the cost (a learning rate, a seed) are not compared."""
    return _base(name).rstrip("_") in VALUED or _base(name) in VALUED


def _model(name: str) -> Model | None:
    base = _base(name)
    return MODELS.get(base) or MODELS.get(base.rstrip("_")) or memory_bound.foreach(base) or _compiled(base)


def _base(name: str) -> str:
    """Name without namespace and overload."""
    return name.rsplit("::", 1)[-1].split(".", 1)[0]


GENERATED = re.compile(r"^(triton_(poi|red|per|for|split_scan)_|cpp_fused_|(graph_\d+_)?cpp_fused_)")
"""Code without matmuls. Inductor names a Triton kernel triton_<kind>_fused_<operators>_<number>: "poi"
pointwise, "red" and "per" reductions, "for" several of these, "tem" a template with a matmul in it."""


def _compiled(name: str) -> Model | None:
    """Model of a kernel that torch.compile generated, which Kineto lists as an operator of its own name with its
    arguments; None for another operator. All arguments count once: inputs, outputs and what is updated in place (read
    and written, so this is a lower bound). Templates, users' kernels and names from before 2023 have no cost here."""
    if GENERATED.match(name):
        return lambda call: _arguments(call, 0.0)
    return (lambda call: _arguments(call, None)) if name.startswith("triton_") else None


def _arguments(call: Call, flops: float | None) -> OpCost:
    if not call.all_tensors:
        raise LookupError("no tensor among the arguments")
    return OpCost(flops, call.read, call.largest.dtype)


ITEM = 4
"""Bytes per element of tensor lists if nothing says otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """Costs of several calls, equal ones stored once: `works[kind[i]]` is the cost of call i."""

    works: tuple[OpCost | None, ...]
    kind: Int64

    @property
    def flops(self) -> Float64:
        """FLOPs of each call; nan for a call without a model."""
        known = (work.flops if work is not None else None for work in self.works)
        return np.array([np.nan if flops is None else flops for flops in known], np.float64)[self.kind]

    @property
    def bytes(self) -> Float64:
        """Bytes of each call; nan for a call without a model."""
        known = [np.nan if work is None else work.bytes for work in self.works]
        return np.array(known, np.float64)[self.kind]


def model(trace: Trace, rows: Numbers, items: Numbers | None = None) -> Modelled:
    """Costs of the operators at `rows` of the event table; a negative row has none. items: bytes per element of each
    call's tensor lists."""
    known = rows >= 0
    at, events = np.where(known, rows, 0), trace.events
    if not len(events):
        return Modelled((), np.empty(0, np.int64))
    names, types = events.name[at], events.dtypes[at]
    valued = of_symbols(trace, depends_on_values)[names]
    listed = np.array([LIST in text for text in (*trace.dtypes, "")])[np.where(types == ABSENT, -1, types)]
    inputs = np.where(valued, events.inputs[at], ABSENT)
    widths = np.where(listed, np.int8(ITEM) if items is None else items, np.int8(ITEM))
    kinds = (np.where(known, names, -1), events.shapes[at], types, inputs, widths)
    first, kind = distinct(*(np.maximum(each, -1) for each in kinds))
    works = [_work(trace, int(at[one]), int(widths[one])) if known[one] else None for one in first]
    return Modelled(tuple(works), kind)


def _work(trace: Trace, row: int, item: int) -> OpCost | None:
    return work_of(*call_texts(trace, row), list_item=item)


def call_texts(trace: Trace, row: int) -> tuple[str, str, str, str]:
    """Name, and raw shapes, dtypes and settings of a call, as the trace has them."""
    events = trace.events
    columns = ((trace.shapes, events.shapes), (trace.dtypes, events.dtypes), (trace.inputs, events.inputs))
    shapes, dtypes, inputs = ("" if column[row] == ABSENT else table[column[row]] for table, column in columns)
    return trace.symbols[events.name[row]], shapes, dtypes, inputs
