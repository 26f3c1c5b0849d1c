"""The change "dynamic-shapes": what the job compiles is compiled for symbolic sizes."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier, count, with_arguments


class DynamicShapes(Applier):
    """No arguments. Exercised where a graph was compiled by a call that was changed."""

    def install(self) -> None:
        """Wraps torch.compile, which nn.Module.compile calls, too."""
        self._calls = 0
        self._already = False
        self.detail = "the job compiles nothing"

        def edit(bound: inspect.BoundArguments) -> None:
            if bound.arguments.get("dynamic") is True:
                self._already = True
                return
            bound.arguments["dynamic"] = True
            self._calls += 1
            self.applied = True

        torch.compile = with_arguments(self, torch.compile, edit)

    def border(self, steps: int) -> None:
        """Looks whether anything came of it."""
        if not self._calls:
            if self._already:
                self.refused("the job compiles for symbolic sizes already")
            return
        utilities: Any = sys.modules.get("torch._dynamo.utils")
        counters: Any = getattr(utilities, "counters", {})
        graphs = int(counters.get("stats", {}).get("unique_graphs", 0))
        self.exercised = graphs > 0
        self.detail = (
            f"{count(self._calls, 'call')} of torch.compile changed, {count(graphs, 'graph')}"
            if graphs
            else "nothing was compiled: no graph came out of it"
        )
