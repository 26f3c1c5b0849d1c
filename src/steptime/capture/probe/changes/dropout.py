"""Dropout as the identity, for a fingerprint: compiled code draws its masks in another order than eager code."""

from __future__ import annotations

import torch

from steptime.capture.probe.changes import traceable

FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def switch_off() -> None:
    """Replaces the functions of torch.nn.functional that modules and user code call."""
    functional = torch.nn.functional
    for name in FUNCTIONS:
        setattr(functional, name, traceable.dropout)
    functional.scaled_dot_product_attention = traceable.attention_without_dropout(
        functional.scaled_dot_product_attention
    )


def switch_off_in(root: torch.nn.Module) -> None:
    """Recurrent layers drop out inside of their kernels."""
    for module in root.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0
