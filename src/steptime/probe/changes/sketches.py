"""Sketches of tensors: a few sums of all their numbers with fixed signs, equal for equal tensors in any memory layout.
The cosine of two gradients' sketches approximates that of the gradients."""

from __future__ import annotations

import functools
from typing import Any

import torch

from steptime.probe.objects import local_values

BUCKETS = 16
"""Numbers of a sketch."""
MOST = 1 << 22
"""Most numbers of a tensor that a sketch reads; of a larger one, evenly spaced ones."""


def sketch(tensor: torch.Tensor) -> Any:
    """Returns the sketch of a tensor: BUCKETS sums of its numbers with fixed signs. It is linear: the sketch of a
    difference is the difference of the sketches."""
    tensor = tensor.detach()
    if tensor.is_sparse and tensor.sparse_dim() == 1 and not tensor.is_complex():
        return _sketch_of_rows(tensor.coalesce())
    values = local_values(tensor)
    if values.is_complex():
        values = torch.view_as_real(values)
    flat = values.reshape(-1)
    if flat.numel() > MOST:
        flat = flat[:: -(-flat.numel() // MOST) | 1]
    flat = flat.to(torch.float32 if flat.device.type == "mps" else torch.float64)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % BUCKETS))
    return _signs(flat.numel() // BUCKETS, flat.device, flat.dtype) @ flat.view(-1, BUCKETS)


def _sketch_of_rows(tensor: torch.Tensor) -> Any:
    """Returns the sketch of a tensor with only some rows (the gradient of a sparse embedding), equal to that of the
    dense tensor, without making it."""
    rows, values = tensor.indices()[0], tensor.values().flatten(1)
    places = rows[:, None] * values.shape[1] + torch.arange(values.shape[1], device=rows.device)
    every = -(-tensor.numel() // MOST) | 1 if tensor.numel() > MOST else 1
    seen = places % every == 0
    places, numbers_ = places[seen] // every, values[seen]
    dtype = torch.float32 if values.device.type == "mps" else torch.float64
    signed = numbers_.to(dtype) * _sign(places // BUCKETS).to(dtype)
    return torch.zeros(BUCKETS, dtype=dtype, device=values.device).index_add_(0, places % BUCKETS, signed)


@functools.lru_cache(64)
def _signs(count: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return _sign(torch.arange(count, device=device, dtype=torch.int64)).to(dtype)


def _sign(rows: torch.Tensor) -> torch.Tensor:
    """Returns 1 or -1 for each row, always the same."""
    return ((rows * 2654435761) >> 15 & 1) * 2 - 1
