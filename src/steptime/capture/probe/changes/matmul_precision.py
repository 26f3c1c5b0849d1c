"""The change "matmul-precision": TensorFloat-32 products of float32 matrices.

Only the older interface: a job that has used the newer one (fp32_precision) may not be asked in the older.
"""

from __future__ import annotations

import torch

from steptime.capture.probe.changes.applier import Applier
from steptime.capture.probe.parameters import parameters_of

AMPERE = (8, 0)
"""Compute capability of the first devices with TensorFloat-32."""


class MatmulPrecision(Applier):
    """arguments: precision ("high", "medium")."""

    def install(self) -> None:
        """Sets it; the job may set it again."""
        self._precision = str(self.arguments.get("precision", "high"))
        self._before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self._precision)
        self.applied = True
        self.detail = "no model has been trained"

    def root(self, module: torch.nn.Module) -> None:
        """Looks for a device that knows it, and sets it once more."""
        try:
            theirs = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision(self._precision)
        except RuntimeError:
            self.applied = False
            self.refused("the job uses the newer interface (fp32_precision), which must not be mixed with this one")
            return
        devices = {parameter.device for parameter in parameters_of(module)}
        capable = [each for each in devices if each.type == "cuda" and torch.cuda.get_device_capability(each) >= AMPERE]
        if not capable:
            self.refused(f"{_names(devices)} has no TensorFloat-32")
        elif self._before == self._precision:
            self.refused(f"the precision was {self._precision} already")
        else:
            self.exercised = True
            again = " (set once more: the job had set it itself)" if theirs != self._precision else ""
            self.detail = f"{self._before} → {self._precision}{again}"


def _names(devices: set[torch.device]) -> str:
    return ", ".join(sorted({device.type for device in devices})) or "this device"
