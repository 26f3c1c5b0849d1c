"""Values of a tensor: whether all are finite, their range, and the rows that are not.

Also the caller of an operator: the user's line, the innermost module, and whether autograd called it. Frames are read,
never kept; module names come from the top modules that the job has called.
"""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from steptime.probe import sites
from steptime.probe.modules import named_modules
from steptime.probe.ours import pass_on

MOST_ROWS = 64
"""Most rows (of the first dimension) that are named."""
MOST_DIMENSIONS = 12


def has_values(tensor: Any) -> bool:
    """True for an ordinary tensor; False for one without memory (meta, the zeros of jvp), of several lengths, or inside
    torch.func's vmap and its like, where a value is one of many."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
        and not tensor._is_zerotensor()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_floating(tensor: Any) -> bool:
    """True if the tensor can hold values that are not finite, and they can be read."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and has_values(tensor)
        and tensor.element_size() > 1  # of the eight-bit formats only some know infinities, and few operators know them
    )


def is_finite(tensor: Any) -> bool:
    """True if all elements are finite. Waits for the device.

    It reads minimum and maximum, which propagate a NaN: one pass and no copy. Measured on a CPU with torch 2.13,
    isfinite().all() takes 19 times as long, the norm of infinite order 25 times."""
    if not tensor.numel():
        return True
    if tensor.is_complex():
        return bool(torch.isfinite(tensor).all())
    low, high = torch.aminmax(tensor.detach())
    return math.isfinite(float(low)) and math.isfinite(float(high))


def storage_of(tensor: Any) -> int:
    """Returns the address of the tensor's memory, the same for all views; 0 without memory."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError) as error:  # a subclass without memory of its own
        pass_on(error)
        return 0


def fills_storage(tensor: Any) -> bool:
    """True if the tensor's memory has no other elements."""
    try:
        return bool(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size())
    except (RuntimeError, NotImplementedError) as error:
        pass_on(error)
        return False


def range_of(tensor: Any, name: str = "", brief: bool = False) -> dict[str, Any]:
    """Returns a `ValueRange`: minimum and maximum of the finite elements, and counts of the others. Waits for the
    device.

    brief: True for only minimum and maximum, of a tensor known to be finite."""
    found: dict[str, Any] = {
        "name": name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape)[:MOST_DIMENSIONS],
        "elements": tensor.numel(),
    }
    if not is_floating(tensor) or not tensor.numel():
        return found
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    if brief:
        low, high = torch.aminmax(values)
        return {**found, "low": float(low), "high": float(high)}
    finite = torch.isfinite(values)
    known = values[finite]
    found["nan"] = int(torch.isnan(values).sum())
    found["infinite"] = finite.numel() - known.numel() - found["nan"]
    found["negative_infinite"] = int((values == -math.inf).sum()) if found["infinite"] else 0
    if known.numel():
        low, high = torch.aminmax(known)
        found["low"], found["high"] = float(low), float(high)
        found["zeros"] = int((known == 0).sum())
    return found


def rows_not_finite(tensor: Any) -> list[int]:
    """Returns the rows (of the first dimension) with values that are not finite, at most MOST_ROWS."""
    if not tensor.dim():
        return []
    bad = ~torch.isfinite(tensor.detach())
    rows = bad.reshape(bad.shape[0], -1).any(dim=1)
    return [int(row) for row in rows.nonzero().flatten()[:MOST_ROWS].tolist()]


def largest_by_row(tensor: Any) -> list[float]:
    """Returns the largest magnitude of each row; 0 for rows without elements."""
    values = tensor.detach().reshape(tensor.shape[0], -1)
    if not values.shape[1]:
        return [0.0] * int(values.shape[0])
    return [float(value) for value in values.abs().amax(dim=1).tolist()]


_CALL = torch.nn.Module._call_impl.__code__
_ENGINE = torch.autograd.graph._engine_run_backward.__code__
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes in which torch.compile, FSDP and checkpoint wrappers hold the wrapped module."""
PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
"""Classes that hold the wrapped module as "module"."""


@dataclass
class CallSite:
    """Call of an operator. site: innermost code outside of torch and Python. caller: innermost line of the user's own,
    if that is another. module: innermost called module. backward: True if autograd's engine made the call."""

    site: tuple[str, int, str] | None = None
    caller: tuple[str, int, str] | None = None
    module: Any = None
    backward: bool = False


def place_of(frame: FrameType | None) -> CallSite:
    found, known = CallSite(), False
    while frame is not None:
        code = frame.f_code
        if code is _CALL:
            if found.module is None and not found.backward:
                found.module = frame.f_locals.get("self")
        elif code is _ENGINE:
            found.backward = found.backward or found.site is None
        elif (whose := sites.whose_frame(frame)) != sites.INNER:
            line = (os.path.abspath(code.co_filename), frame.f_lineno or code.co_firstlineno, code.co_name)
            if found.site is None:
                found.site, known = line, whose == sites.USER
            elif whose == sites.USER and not known:
                found.caller, known = line, True
        if known and found.module is not None:
            break
        frame = frame.f_back
    return found


class ModuleNames:
    """Paths of modules below the called top modules, such as "Net.layers.3.attention"."""

    def __init__(self) -> None:
        self._top_modules: list[weakref.ref[torch.nn.Module]] = []
        self._names: dict[int, str] = {}

    def top_module(self, module: torch.nn.Module) -> None:
        self._top_modules.append(weakref.ref(module))
        self._learn(module)

    def of(self, module: Any) -> str:
        """Returns a module's path; its class if no top module holds it; "" for None."""
        if module is None:
            return ""
        if id(module) not in self._names:
            for reference in self._top_modules:  # modules that were added since
                top_module = reference()
                if top_module is not None:
                    self._learn(top_module)
        return self._names.get(id(module), type(module).__name__)

    def _learn(self, top_module: torch.nn.Module) -> None:
        for path, module in named_modules([top_module]):
            parts = [part for part in path.split(".")[1:] if part not in WRAPPERS]
            if type(top_module).__name__ in PARALLEL and parts[:1] == ["module"]:
                del parts[0]
            self._names.setdefault(id(module), ".".join((_class_of(top_module), *parts)))


def _class_of(top_module: Any) -> str:
    inner = top_module
    while True:
        children = inner.__dict__.get("_modules", {})  # not by attribute: a class of the job's may answer for any name
        wrapped = children.get("_orig_mod")
        if wrapped is None and type(inner).__name__ in PARALLEL:
            wrapped = children.get("module")
        if wrapped is None:
            return type(inner).__name__
        inner = wrapped
