"""Values without dimensions that a step leaves on the device, read without holding it up.

On a CPU they are read at once. On a device they are copied together behind what the step has queued, and read when they
have arrived, which is a step or two later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

MOST_PENDING = 8
"""Steps that may be on their way; the oldest is waited for then."""


class Readings:
    """Takes (name, tensor) pairs step by step, gives back (step, [(name, value), …]) in the same order."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Any] = []
        self._pending: deque[tuple[int, list[str], Any, Any]] = deque()

    def add(self, name: str, tensor: Any) -> None:
        """Of the step that is under way. tensor: detached, one element."""
        self._names.append(name)
        self._tensors.append(tensor)

    def close(self, step: int) -> None:
        """The step has ended."""
        if self._names:
            names, tensors = self._names, self._tensors
            self._names, self._tensors = [], []
            self._pending.append((step, names, *_sent(tensors)))

    def ready(self, wait: bool = False) -> Iterator[tuple[int, list[tuple[str, float]]]]:
        """The steps whose values have arrived; with `wait` all."""
        while self._pending:
            step, names, values, event = self._pending[0]
            if event is not None and not event.query():
                if not wait and len(self._pending) < MOST_PENDING:
                    return
                event.synchronize()
            self._pending.popleft()
            yield step, list(zip(names, values if event is None else values.tolist(), strict=True))

    def forget(self) -> None:
        """In a forked child."""
        self._names, self._tensors = [], []
        self._pending.clear()


def _sent(tensors: list[Any]) -> tuple[Any, Any]:
    """(values, None) of tensors on a CPU; else (their copies in pinned memory, the event behind them)."""
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    if device is None:
        return [float(tensor) for tensor in tensors], None
    with torch.no_grad(), torch.cuda.device(device):
        together = torch.stack([tensor.reshape(()).to(device, torch.float32, non_blocking=True) for tensor in tensors])
        host = torch.empty(together.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(together, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return host, event
