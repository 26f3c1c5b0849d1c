"""The change "checkpointing": activations of repeated blocks are computed again in the backward, or no longer are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint

from steptime.capture.probe.changes import traceable
from steptime.capture.probe.changes.applier import Applier, count
from steptime.capture.probe.parameters import parameters_of


class Checkpointing(Applier):
    """arguments: enabled (True by default; False makes the job's own calls of torch's checkpoint plain calls).

    A block: a child of a ModuleList or Sequential that has siblings of its class, parameters, and children.
    """

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._on = bool(arguments.get("enabled", True))
        self._blocks: dict[int, torch.nn.Module] = {}
        self._plain = 0
        self.detail = "no model has been trained" if self._on else "the job does not call torch's checkpoint"

    def install(self) -> None:
        """Where it is to be off: before somebody imports the function."""
        if self._on:
            return

        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._plain += 1
            for name in (
                "use_reentrant",
                "context_fn",
                "determinism_check",
                "debug",
                "preserve_rng_state",
                "early_stop",
            ):
                kwargs.pop(name, None)
            return function(*args, **kwargs)

        torch_checkpoint.checkpoint = checkpoint
        self.applied = True

    def root(self, module: torch.nn.Module) -> None:
        """Gives each block's instance a forward of its own."""
        if not self._on:
            return
        for block in _blocks(module):
            if id(block) not in self._blocks:
                self._blocks[id(block)] = block
                block.forward = traceable.recomputed(block.forward)
        self.applied = self.exercised = bool(self._blocks)
        self.detail = count(len(self._blocks), "block") if self._blocks else "the model has no repeated blocks"

    def border(self, steps: int) -> None:
        """Says what was made plain."""
        if not self._on and self._plain:
            self.exercised = True
            self.detail = f"{count(self._plain, 'call')} of checkpoint made plain"


def _blocks(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Outermost blocks only: one inside another would be computed twice again."""
    inside: set[int] = set()
    for holder in root.modules():
        if id(holder) in inside or not isinstance(holder, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        children = [each for each in holder.children() if any(True for _ in each.children())]
        children = [each for each in children if next(parameters_of(each), None) is not None]
        kinds = [type(each) for each in children]
        for child in children:
            if kinds.count(type(child)) > 1:
                inside.update(id(each) for each in child.modules())
                yield child
