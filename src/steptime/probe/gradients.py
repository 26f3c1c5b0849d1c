"""Samples of the gradient norm, to see a training that diverges.

Only gradients on the CPU are read, so that nothing waits for a device and no memory counter changes. None are read
while operators are observed, because the observer would see ours.
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
"""Elements of the parameters whose gradients are read. The smallest parameters are chosen, because they are in all
layers and an explosion reaches all of them. A few megabytes are read in less than a millisecond."""
REST = 5000
"""Factor of the pause after a sample, in durations of the sample: 0.02 % of the job's time."""
SPAN = 3
"""The cost of a sample is the median of so many, because the first one also chooses parameters, and one interrupted for
10 ms must not stop sampling for a minute. Until there are as many, every step is sampled."""
RANGES = (torch.float32, torch.float64, torch.bfloat16)
"""Dtypes that are read. A norm in float16 overflows long before the gradients do."""
TENSOR = torch._C.TensorBase
GRADIENT, DEVICE, LEAF = TENSOR.grad, TENSOR.device, TENSOR.is_leaf
LARGEST = float(torch.finfo(torch.float32).max)


class GradientNorm:
    """Sampler of the gradient norm, at step boundaries. trained: function that returns the trained parameters."""

    def __init__(self, recorder: Recorder, trained: Callable[[], Iterable[Any]]) -> None:
        self._recorder, self._trained = recorder, trained
        self._chosen: list[weakref.ref[Any]] | None = None
        self._due = 0
        self._taken: deque[int] = deque(maxlen=SPAN)

    def look(self) -> None:
        """Samples the norm if it is due and the gradients can be read."""
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
    """Returns a norm as the bits of a 32-bit float, for the journal. For non-negative floats they are below 2**31,
    which no clock time is. NaN and norms beyond float32 become infinity."""
    kept = norm if 0 <= norm <= LARGEST else math.inf
    return int(struct.unpack("<i", struct.pack("<f", kept))[0])


def _chosen(trained: Iterable[Any]) -> list[weakref.ref[Any]]:
    """Returns the parameters to read. Leaves only, because torch warns about the gradient of others. Runs no method of
    the job's own classes."""
    left, found = MOST_ELEMENTS, []
    readable = [each for each in trained if DEVICE.__get__(each).type == "cpu" and LEAF.__get__(each)]
    for parameter in sorted(readable, key=TENSOR.numel):
        left -= TENSOR.numel(parameter)
        if left < 0:
            break
        found.append(weakref.ref(parameter))
    return found


def _norm(parameters: list[Any]) -> float | None:
    """Returns the norm of all gradients together, or None if there are none."""
    gradients = [gradient for each in parameters if _is_read(gradient := GRADIENT.__get__(each))]
    return math.hypot(*map(float, torch._foreach_norm(gradients))) if gradients else None


def _is_read(gradient: Any) -> bool:
    return (
        type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and gradient.device.type == "cpu"
        and gradient.dtype in RANGES
    )
