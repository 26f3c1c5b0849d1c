"""The first losses that backward starts on: whether they are divided by a number, as accumulation asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from steptime.probe import backwards
from steptime.probe.backwards import BackwardObserver

LOOKS = 4
"""Backward passes on a scalar that are looked at: the first ones, of one or two steps."""
MOST_NODES = 8
"""Nodes of the graph that are looked at below a loss."""
PASSES_ON = ("Add", "ToCopy", "Alias", "View", "Squeeze", "Unsqueeze")
"""Nodes that keep what their inputs are, as a sum of losses does."""
REDUCES = ("Mean", "Sum", "NllLoss", "MseLoss", "L1Loss", "SmoothL1", "Huber", "BinaryCrossEntropy", "KlDiv")
"""Nodes of a loss itself: behind them nothing is divided."""


class LossObserver(BackwardObserver):
    """Tells `report` once whether the losses are divided or multiplied by something, and stops looking. It reads the
    names of autograd's nodes: no value, so that nothing waits for a device. failed: told of an error."""

    def __init__(self, report: Callable[[bool], None], failed: Callable[[Exception], None]) -> None:
        self._report, self._failed, self._left = report, failed, LOOKS

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        """Looks at a pass."""
        try:
            if not partial and len(tensors) == 1 and tensors[0].numel() == 1:
                self._look(tensors[0])
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._end()
            self._failed(error)
        return tensors, None

    def _look(self, loss: torch.Tensor) -> None:
        divided = _divided(loss.grad_fn)
        self._left -= 1
        if divided is not False:  # one that is divided, or of which the graph does not tell, says it of all
            self._left = 0
        if not self._left:
            self._end()
            if divided is not None:
                self._report(divided)

    def _end(self) -> None:
        backwards.unobserve(self)


def _divided(node: Any) -> bool | None:
    """Whether a loss is a quotient or a product; None where its graph does not tell (compiled, or of a kind that is not
    known)."""
    waiting, known = [node], False
    for _ in range(MOST_NODES):
        if not waiting:
            return False if known else None
        name = type(waiting[0]).__name__
        if name.startswith(("Div", "Mul")):
            return True
        if name.startswith(PASSES_ON):
            waiting += [each for each, _ in waiting[0].next_functions if each is not None]
        elif name.startswith(REDUCES):
            known = True
        else:
            return None
        del waiting[0]
    return None
