"""The norm of the gradients, looked at now and then: whether the training runs away.

One law: only what lies on the CPU is read, so that nothing waits for a device and no counter of its memory moves; and
nothing is read where somebody watches operators, who would see ours.
"""

from __future__ import annotations

import math
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from steptime.journal import Kind
from steptime.probe.ours import pass_on
from steptime.probe.recorder import Recorder

MOST_ELEMENTS = 1 << 20
"""Elements of the parameters whose gradients are looked at, the smallest ones first, which lie in all layers: what
explodes does so in all of them. A megabyte or four is read in less than a millisecond."""
REST = 5000
"""So many times as long as a look takes must pass before the next: 0.02 % of the job's time."""
SPAN = 3
"""The cost of a look is the median of as many: the first one of all also chooses the parameters, and one that the
machine interrupted for ten milliseconds must not be the last for a minute. Until there are as many, every step is
looked at."""
RANGES = (torch.float32, torch.float64, torch.bfloat16)
"""The norm of gradients in float16 overflows long before they do."""
TENSOR = torch._C.TensorBase
GRADIENT, DEVICE, LEAF = TENSOR.grad, TENSOR.device, TENSOR.is_leaf
LARGEST = float(torch.finfo(torch.float32).max)


class GradientNorm:
    """Call `look` at boundaries of steps; parameters are held weakly. trained: gives the parameters that are
    trained."""

    def __init__(self, recorder: Recorder, trained: Callable[[], Iterable[Any]]) -> None:
        self._recorder, self._trained = recorder, trained
        self._chosen: list[weakref.ref[Any]] | None = None
        self._due = 0
        self._taken: deque[int] = deque(maxlen=SPAN)

    def look(self) -> None:
        """Samples the norm, where it is due and the gradients can be read."""
        start = time.perf_counter_ns()
        if start < self._due or torch.autograd._profiler_enabled() or torch._C._len_torch_dispatch_stack():
            return
        first = self._chosen is None
        try:
            norm = self._norm()
        except Exception as error:  # noqa: BLE001 - the probe's boundary: tensors of a kind that knows no norm are not asked again
            self._chosen, norm = [], None
            pass_on(error)
        if norm is not None:
            self._recorder.journal.sample(int(Kind.GRADIENT_NORM), 0, start, bits(norm))
            self._recorder.pause(start)
        taken = time.perf_counter_ns() - start
        if norm is None:  # quick, as nothing was read: that says nothing of the others
            self._due = start if first else start + REST * taken
            return
        self._taken.append(taken)
        if len(self._taken) == SPAN:
            self._due = start + REST * sorted(self._taken)[SPAN // 2]

    def _norm(self) -> float | None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if self._chosen is None:
                self._chosen = _chosen(self._trained())
            return _norm([parameter for each in self._chosen if (parameter := each()) is not None])


def bits(norm: float) -> int:
    """A norm as the journal keeps it: the bits of a 32-bit float, which for what is not negative are less than 2**31,
    no time of a clock. A norm that is no number, or beyond such a float, is written as infinity."""
    kept = norm if 0 <= norm <= LARGEST else math.inf
    return int(struct.unpack("<i", struct.pack("<f", kept))[0])


def _chosen(trained: Iterable[Any]) -> list[weakref.ref[Any]]:
    """Leaves only: torch warns where another's gradient is asked for. Nothing is asked of the job's own classes."""
    left, found = MOST_ELEMENTS, []
    readable = [each for each in trained if DEVICE.__get__(each).type == "cpu" and LEAF.__get__(each)]
    for parameter in sorted(readable, key=TENSOR.numel):
        left -= TENSOR.numel(parameter)
        if left < 0:
            break
        found.append(weakref.ref(parameter))
    return found


def _norm(parameters: list[Any]) -> float | None:
    """The norm of all gradients together, as that of their norms; None where there are none."""
    gradients = [gradient for each in parameters if _is_read(gradient := GRADIENT.__get__(each))]
    return math.hypot(*map(float, torch._foreach_norm(gradients))) if gradients else None


def _is_read(gradient: Any) -> bool:
    return (
        type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and gradient.device.type == "cpu"
        and gradient.dtype in RANGES
    )
