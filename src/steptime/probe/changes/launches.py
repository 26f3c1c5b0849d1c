"""Kernels, launches and operators of a rehearsal's last step, which compiling, fusing and graphs make fewer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from steptime.probe.profiling import ProfilerWindow
from steptime.probe.recorder import Recorder

KERNEL = "kernel"
OPERATOR = "::"
ENGINE = ("autograd::", "torch::autograd::")
"""Events of the autograd engine around the operators of a backward pass."""


class LaunchCounter:
    """Counter of one step by torch's profiler. The step is not timed."""

    def __init__(self) -> None:
        self._window: ProfilerWindow | None = None

    def boundary(self, steps: int, last: int, recorder: Recorder) -> dict[str, int]:
        """Called when a step has ended. Counts step `last`, and returns fields of `StepWork` after it."""
        if steps == last - 1:
            window = ProfilerWindow(recorder, 0, False, shapes=False, exported=False)
            if not window.obstacle():
                self._window = window
                window.start()
        elif steps == last and self._window is not None:
            events = self._window.events()
            return counts_of(events) if events else {}
        return {}


def counts_of(events: Iterable[Any]) -> dict[str, int]:
    """Number of kernels and of the calls that launch them (a captured graph is one), and of operators that no operator
    calls."""
    events = list(events)
    kernels = [each.correlation_id() for each in events if _is_kernel(each)]
    spans = [
        (each.start_thread_id(), each.start_ns(), -each.duration_ns())
        for each in events
        if each.device_type() == torch.autograd.DeviceType.CPU
        and OPERATOR in (name := each.name())
        and not name.startswith(ENGINE)
    ]
    operators, thread, end = 0, None, 0
    for own, start, length in sorted(spans):
        if own != thread or start >= end:
            operators, thread, end = operators + 1, own, start - length
    return {"kernels": len(kernels), "launches": len(set(kernels)), "operators": operators}


def _is_kernel(event: Any) -> bool:
    """True for a kernel; copies and ranges are on a device, too. False where torch does not tell (before 2.8)."""
    kind = getattr(event, "activity_type", None)
    return kind is not None and event.device_type() != torch.autograd.DeviceType.CPU and KERNEL in kind()
