"""Loss scaling for float16, around each backward: what torch.amp.GradScaler does, without the job's help.

The gradients that a backward finds (accumulation) are scaled with the loss and all are scaled back behind it; scales
are powers of two, so that nothing is rounded. Gradients that overflowed become zero, and the scale is halved.
"""

from __future__ import annotations

from typing import Any

import torch

FIRST_SCALE, LARGEST_SCALE = 2.0**16, 2.0**24
GROWTH_INTERVAL = 2000
"""As GradScaler: its first scale, and so many backwards without an overflow until it doubles."""


class LossScale:
    """parameters: those whose gradients are scaled back. overflows: backwards whose gradients were lost."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []
        self.overflows = 0
        self._scale = FIRST_SCALE
        self._good = 0
        self._pending = False

    def scaled(self, tensors: Any) -> Any:
        """What backward is called on, scaled."""
        self._multiply(self._scale)
        self._pending = True
        if isinstance(tensors, torch.Tensor):
            return tensors * self._scale
        return [each * self._scale if isinstance(each, torch.Tensor) else each for each in tensors]

    def restore(self) -> None:
        """Gradients as they would be without a scale. Waits for the device, as GradScaler does."""
        if not self._pending:
            return
        self._pending = False
        self._multiply(1 / self._scale)
        gradients = self._gradients()
        if not gradients or bool(torch.stack([each.isfinite().all() for each in gradients]).all()):
            self._good += 1
            if self._good % GROWTH_INTERVAL == 0:
                self._scale = min(self._scale * 2, LARGEST_SCALE)
            return
        self.overflows += 1
        self._good, self._scale = 0, max(self._scale / 2, 1.0)
        torch._foreach_zero_(gradients)

    def _gradients(self) -> list[Any]:
        return [each.grad for each in self.parameters if each.grad is not None and not each.grad.is_sparse]

    def _multiply(self, factor: float) -> None:
        gradients = self._gradients()
        if gradients:
            torch._foreach_mul_(gradients, factor)
