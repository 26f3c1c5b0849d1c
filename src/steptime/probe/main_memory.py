"""Tensors whose memory can be read as bytes: no operator runs for that, and no class of the job's is asked.

Memory that a storage has given back, as FSDP's does between two uses, is never read: that would end the process.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from steptime.probe.ours import pass_on

NATIVE = (torch.Tensor, torch.nn.Parameter)
"""Exact types: a subclass may answer with code of its own."""
bytes_at = ctypes.string_at
"""Bytes from an address on, for a `readable` tensor or an array of numpy."""


def readable(tensor: Any) -> bool:
    """True if all elements of a tensor lie in main memory; False for a tensor inside a transform (vmap, grad), too."""
    if type(tensor) not in NATIVE or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    try:
        held = int(tensor.untyped_storage().nbytes()) if tensor.numel() else 0
    except (RuntimeError, NotImplementedError) as error:
        pass_on(error)
        return False
    return held >= int(tensor.storage_offset() + span(tensor)) * int(tensor.element_size())


def span(tensor: Any) -> int:
    """Number of elements from the tensor's first to its last in memory, gaps included."""
    if not tensor.numel():
        return 0
    return 1 + sum((int(size) - 1) * int(apart) for size, apart in zip(tensor.shape, tensor.stride(), strict=True))
