"""The change "compile": torch.compile around each root module."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from steptime.capture.probe.changes import traceable
from steptime.capture.probe.changes.applier import Applier, count

OURS = "steptime."
"""Modules of what the watch has put into the slot of a compiled call: it times a model that was evaluated first."""
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx")


class Compile(Applier):
    """arguments: mode (None, "reduce-overhead", "max-autotune", …), dynamic (True, False, None), backend.

    Exercised only where graphs were compiled: torch passes over some modules in silence.
    """

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self.detail = "no model has been trained"
        self._roots = 0
        self._failed = False

    def root(self, module: torch.nn.Module) -> None:
        """Compiles its call."""
        slot = module.__dict__.get("_compiled_call_impl")
        ours = (getattr(slot, "__module__", None) or "").startswith(OURS)
        if type(module).__name__ == "OptimizedModule" or (slot is not None and not ours):
            if not self.applied:
                self.refused("the job compiles this model itself")
            return
        chosen = {name: self.arguments[name] for name in ("mode", "dynamic") if self.arguments.get(name) is not None}
        if chosen.get("mode") == "default":
            del chosen["mode"]
        if self.arguments.get("backend"):
            chosen["backend"] = self.arguments["backend"]
        compiled = torch.compile(traceable.caller_of(module), **chosen)
        module.__dict__["_compiled_call_impl"] = self._otherwise_as_before(module, compiled)
        self.applied = True
        self._roots += 1

    def _otherwise_as_before(self, module: torch.nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Where the compiler gives up, the module is called as ever."""

        @functools.wraps(module._call_impl)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._failed:
                return module._call_impl(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except Exception as error:  # an error of the compiler's own; the user's goes on
                if not type(error).__module__.startswith(COMPILERS):
                    raise
                self._failed = True
                self.failed(error)
            return module._call_impl(*args, **kwargs)

        return call

    def border(self, steps: int) -> None:
        """Looks at what has been compiled."""
        if not self.applied or self._failed:
            return
        graphs, breaks = _counted("stats", "unique_graphs"), _total("graph_break")
        self.exercised = graphs > 0
        self.seconds = _seconds()
        if graphs:
            self.detail = f"{count(graphs, 'graph')}, {count(breaks, 'break')}, in {count(self._roots, 'root module')}"
        else:
            self.detail = "nothing was compiled: no graph came out of it"


def _counters() -> Any:
    utilities = sys.modules.get("torch._dynamo.utils")
    return getattr(utilities, "counters", {})


def _counted(group: str, name: str) -> int:
    return int(_counters().get(group, {}).get(name, 0))


def _total(group: str) -> int:
    return sum(_counters().get(group, {}).values())


def _seconds() -> float:
    """Of all compilations that torch remembers (the newest 64)."""
    metrics: Any = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", tuple)()
    return round(sum(int(getattr(metric, "duration_us", 0) or 0) for metric in metrics) / 1e6, 3)
