"""Where an operator was called from: the user's line, the innermost module, and whether autograd called it.

Frames are only read, never kept; module names are looked up in the roots that the job has called.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from steptime.probe import sites

_CALL = torch.nn.Module._call_impl.__code__
_ENGINE = torch.autograd.graph._engine_run_backward.__code__
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names under which torch.compile, FSDP and checkpoint wrappers hold what they wrap."""
PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
"""Classes that hold it under the name "module"."""


@dataclass
class CallSite:
    """site: of the innermost code that is neither torch's nor the language's. caller: the innermost line of the user's
    own, where that is another. module: the innermost one that was being called. backward: autograd's engine called."""

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


def line_of(place: tuple[str, int, str] | None) -> dict[str, Any] | None:
    return sites.line_at(place) if place is not None else None


class ModuleNames:
    """Paths of modules below the roots that were called, such as "Net.layers.3.attention"."""

    def __init__(self) -> None:
        self._roots: list[weakref.ref[torch.nn.Module]] = []
        self._names: dict[int, str] = {}

    def root(self, module: torch.nn.Module) -> None:
        self._roots.append(weakref.ref(module))
        self._learn(module)

    def of(self, module: Any) -> str:
        """The path of a module; its class where no root holds it; "" for None."""
        if module is None:
            return ""
        if id(module) not in self._names:
            for reference in self._roots:  # modules that were added since
                root = reference()
                if root is not None:
                    self._learn(root)
        return self._names.get(id(module), type(module).__name__)

    def _learn(self, root: torch.nn.Module) -> None:
        for name, module in root.named_modules():
            parts = [part for part in name.split(".") if part and part not in WRAPPERS]
            if type(root).__name__ in PARALLEL and parts[:1] == ["module"]:
                del parts[0]
            self._names.setdefault(id(module), ".".join((_class_of(root), *parts)))


def _class_of(root: Any) -> str:
    inner = root
    while True:
        wrapped = getattr(inner, "_orig_mod", None)
        if wrapped is None and type(inner).__name__ in PARALLEL:
            wrapped = getattr(inner, "module", None)
        if wrapped is None:
            return type(inner).__name__
        inner = wrapped
