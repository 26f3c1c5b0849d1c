"""The change "ddp": arguments of DistributedDataParallel."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier, with_arguments

SETTINGS = ("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "find_unused_parameters")


class DistributedSettings(Applier):
    """arguments: any of SETTINGS."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._wanted = {name: arguments[name] for name in SETTINGS if name in arguments}
        self.detail = "the job makes no DistributedDataParallel"

    def install(self) -> None:
        """Wraps its constructor."""
        cls = torch.nn.parallel.DistributedDataParallel

        def edit(bound: inspect.BoundArguments) -> None:
            if all(bound.arguments.get(name) == value for name, value in self._wanted.items()):
                self.refused("the job sets it so already")
                return
            bound.arguments.update(self._wanted)
            self.applied = True

        cls.__init__ = with_arguments(self, cls.__init__, edit)

    def root(self, module: torch.nn.Module) -> None:
        """A model that is trained under it."""
        if self.applied and isinstance(module, torch.nn.parallel.DistributedDataParallel):
            self.exercised = True
            self.detail = ", ".join(f"{name}={value}" for name, value in self._wanted.items())
