"""The changes "cudnn-benchmark" and "sdpa-backend": which kernels a CUDA device uses."""

from __future__ import annotations

from typing import Any

import torch

from steptime.capture.probe.changes import traceable
from steptime.capture.probe.changes.applier import Applier
from steptime.capture.probe.parameters import parameters_of

SWITCHES = {
    "flash": "enable_flash_sdp",
    "efficient": "enable_mem_efficient_sdp",
    "math": "enable_math_sdp",
    "cudnn": "enable_cudnn_sdp",
}


def _on_cuda(module: torch.nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in parameters_of(module))


class CudnnBenchmark(Applier):
    """No arguments. cuDNN tries its algorithms for every new shape and keeps the fastest."""

    def install(self) -> None:
        """Sets it; the job may set it again."""
        self._before = bool(torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = True
        self.applied = True
        self.detail = "no model has been trained"

    def root(self, module: torch.nn.Module) -> None:
        """Sets it once more, and looks whether there is anything to choose."""
        theirs = bool(torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = True
        convolutions = sum(isinstance(each, torch.nn.modules.conv._ConvNd) for each in module.modules())
        if not _on_cuda(module):
            self.refused("the model is on no CUDA device")
        elif self._before:
            self.refused("it was on already")
        elif not convolutions:
            self.refused("the model has no convolution")
        else:
            self.exercised = True
            self.detail = f"{convolutions} convolutions" + ("" if theirs else " (the job had switched it off)")


class AttentionBackend(Applier):
    """arguments: backend (one of SWITCHES), the only one that scaled_dot_product_attention may use."""

    def install(self) -> None:
        """Leaves one switch on, and notes calls in the first step."""
        self._calls: list[int] = []
        self._cuda = False
        backend = str(self.arguments["backend"])
        for name, switch in SWITCHES.items():
            enable: Any = getattr(torch.backends.cuda, switch, None)
            if enable is not None:
                enable(name == backend)
        functional: Any = torch.nn.functional
        self._original = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = traceable.counted_attention(self._original, self._calls)
        self.applied = True
        self.detail = "no model has been trained"

    def root(self, module: torch.nn.Module) -> None:
        """The switches are of CUDA."""
        self._cuda = self._cuda or _on_cuda(module)

    def border(self, steps: int) -> None:
        """Says what was seen in the first step."""
        if steps != 1:
            return
        torch.nn.functional.scaled_dot_product_attention = self._original
        if not self._cuda:
            self.refused("the model is on no CUDA device")
        elif not self._calls:
            self.refused("scaled_dot_product_attention was not called, or from compiled code")
        else:
            self.exercised = True
            self.detail = f"{self.arguments['backend']}, {len(self._calls)} calls a step"
