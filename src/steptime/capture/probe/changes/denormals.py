"""The change "flush-denormal": numbers too small for the processor's normal arithmetic are taken for zero.

The mode belongs to a thread, and a thread that is started has that of the one that starts it: so it is set before torch
has started any.
"""

from __future__ import annotations

import torch

from steptime.capture.probe.changes.applier import Applier
from steptime.capture.probe.identity import flushes_denormals


class FlushDenormal(Applier):
    """No arguments."""

    def install(self) -> None:
        """Sets the mode; the job may set it again."""
        if flushes_denormals():
            self.refused("denormals were flushed already")
            return
        self.applied = bool(torch.set_flush_denormal(True))
        self.detail = "no step ran under it" if self.applied else "this processor has no such mode"

    def border(self, steps: int) -> None:
        """Looks whether it holds."""
        if self.applied:
            self.exercised = flushes_denormals()
            self.detail = "" if self.exercised else "the job has switched it off"
