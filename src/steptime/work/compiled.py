"""Kernels that torch.compile generated, which Kineto lists as operators of their own names with their arguments.

Inductor names a Triton kernel triton_<kind>_fused_<operators>_<number>: "poi" pointwise, "red" and "per" reductions,
"for" several of these, "tem" a template with a matrix product in it. All arguments are counted once: inputs, outputs
and what is updated in place (which is read and written, so that this is the least that moves).
"""

from __future__ import annotations

import re

from steptime.work.arguments import Call
from steptime.work.model import Model, Work

GENERATED = re.compile(r"^(triton_(poi|red|per|for|split_scan)_|cpp_fused_|(graph_\d+_)?cpp_fused_)")
"""Code without matrix products."""
OPAQUE = re.compile(r"^triton_")
"""Templates, users' kernels and names of before 2023: what they compute is not said."""


def compiled(name: str) -> Model | None:
    """The model of generated code by its name, None for another operator."""
    if GENERATED.match(name):
        return lambda call: _arguments(call, 0.0)
    if OPAQUE.match(name):
        return lambda call: _arguments(call, None)
    return None


def _arguments(call: Call, flops: float | None) -> Work:
    if not call.all_tensors:
        raise LookupError("no tensor among the arguments")
    return Work(flops, call.read, call.largest.number_format)
