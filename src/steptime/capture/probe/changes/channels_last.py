"""The change "channels-last": weights of convolutions, and images, with their channels innermost in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier, count, wrap_root
from steptime.capture.probe.parameters import parameters_of

IMAGE = 4
"""Dimensions of a batch of images, and of the weight of a 2-D convolution."""


class ChannelsLast(Applier):
    """The parameters stay the same objects; the optimiser has no state of them yet."""

    order = 1

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._weights = 0
        self.detail = "no model has been trained"

    def root(self, module: torch.nn.Module) -> None:
        """Converts the weights, and the inputs from now on."""
        weights = [each for each in parameters_of(module) if each.dim() == IMAGE and each.shape[2:].numel() > 1]
        changed = [each for each in weights if not each.is_contiguous(memory_format=torch.channels_last)]
        if not changed:
            if not self.exercised:
                self.refused("no weight of a convolution" if not weights else "the weights are so already")
            return
        for weight in changed:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        wrap_root(module, _with_images)
        self._weights += len(changed)
        self.applied = self.exercised = True
        self.detail = f"{count(self._weights, 'weight')} of convolutions"


def _with_images(inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        return inner(*map(_image, args), **{name: _image(value) for name, value in kwargs.items()})

    return call


def _image(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == IMAGE and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value
