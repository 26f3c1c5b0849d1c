"""The first losses that backward starts on: whether they are divided by a number, as accumulation asks for."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from steptime.probe import backwards, sites
from steptime.probe.backwards import BackwardObserver
from steptime.probe.ours import pass_on
from steptime.probe.recorder import Recorder

LOOKS = 4
"""Backward passes on a scalar that are looked at: the first ones, of one or two steps."""
MOST_NODES = 8
"""Nodes of the graph that are looked at below a loss."""
PASSES_ON = ("Add", "ToCopy", "Alias", "View", "Squeeze", "Unsqueeze")
"""Nodes that keep what their inputs are, as a sum of losses does."""
REDUCES = ("Mean", "Sum", "NllLoss", "MseLoss", "L1Loss", "SmoothL1", "Huber", "BinaryCrossEntropy", "KlDiv")
"""Nodes of a loss itself: behind them nothing is divided."""


class LossListener(Protocol):
    """Receiver of the results of a LossObserver. recorder: takes the fact; failed: gets an error."""

    recorder: Recorder

    def failed(self, error: Exception) -> None:
        """Called when our code has raised an error."""


class LossObserver(BackwardObserver):
    """Observer that records once whether the losses are divided or multiplied by something, and then stops. It reads
    the names of autograd's nodes and no value, so that nothing waits for a device. Passes that several lines start are
    of several losses, not of micro-batches: then nothing is recorded."""

    def __init__(self, listener: LossListener) -> None:
        self._listener, self._left = listener, LOOKS
        self._site: tuple[str, int, str] | None = None

    def install(self) -> None:
        backwards.observe(self)

    def remove(self) -> None:
        backwards.unobserve(self)

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        """Keeps the graph of a scalar until its pass has ended. The first such pass opens the recording."""
        try:
            alone = not partial and len(tensors) == 1 and tensors[0].numel() == 1
            return tensors, (tensors[0].grad_fn, sites.user_frame(sys._getframe(2))) if alone else None
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._fails(error)
            pass_on(error)
            return tensors, None

    def ends(self, begun: Any) -> None:
        try:
            self._look(*begun)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._fails(error)
            pass_on(error)

    def _fails(self, error: Exception) -> None:
        self.remove()
        self._listener.failed(error)

    def _look(self, node: Any, site: tuple[str, int, str] | None) -> None:
        elsewhere, self._site = self._site not in (None, site), site
        divided = None if elsewhere else _divided(node)
        self._left -= 1
        if divided is not False:  # one that is divided, or may be, stands for all
            self._left = 0
        if not self._left:
            self.remove()
            if divided is not None:
                self._listener.recorder.fact("loss", divided=divided)


def _divided(node: Any) -> bool | None:
    """True if a loss is a quotient or a product; None if its graph does not show it (compiled, or of an unknown
    kind)."""
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
