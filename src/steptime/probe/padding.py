"""How much of a batch is padding, read off a few batches on the CPU without asking anything of the user's.

Rows of numbers (tokens) are padded at their ends, or at their fronts, with one number that stands nowhere else in them.
Looked at in memory with numpy, if torch has imported it: modes and profilers that the job may be in see no operator.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter, UserDict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

LEAST_ROWS, LEAST_LENGTH = 2, 8
MOST_NUMBERS = 1 << 20
"""Of a batch: 8 MB, a few milliseconds."""
MOST_PARTS = 16
KINDS = {torch.int64: "int64", torch.int32: "int32", torch.int16: "int16"}
ELSEWHERE = 0.01
"""Of the places that are not filled: the filler may stand there once in a while and is no filler when more often."""
DEPTH = 3
"""Of dictionaries, lists and tuples in a batch."""


def padded_share(batch: Any) -> float | None:
    """The share of the numbers in a batch that only fill it up: of the first tensor in it that looks like tokens. None
    where there is none."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    with torch._C.DisableTorchFunction():
        shares = (_share(_array(each, numpy)) for each in _tensors(batch, DEPTH))
        return next((share for share in shares if share is not None), None)


def _tensors(batch: Any, depth: int) -> Iterator[Any]:
    """Plain tensors of tokens' shape. Only exact types are opened: others would be asked."""
    kind = type(batch)
    if kind is torch.Tensor:
        if _may_be_tokens(batch):
            yield batch
    elif depth:
        fields = batch.__dict__.get("data") if UserDict in kind.__mro__ else batch  # Hugging Face's batches
        parts = fields.values() if type(fields) is dict else batch if kind in (list, tuple) else ()
        for part in islice(parts, MOST_PARTS):
            yield from _tensors(part, depth - 1)


def _may_be_tokens(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.dtype not in KINDS or tensor.dim() != 2:
        return False
    rows, length = tensor.shape
    return bool(rows >= LEAST_ROWS and length >= LEAST_LENGTH and rows * length <= MOST_NUMBERS) and _lies_there(tensor)


def _lies_there(tensor: torch.Tensor) -> bool:
    """Whether its numbers are in memory, one behind the other: a storage may have been made smaller than its tensor."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return False
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return bool(tensor.untyped_storage().nbytes() >= end)


def _array(tensor: torch.Tensor, numpy: Any) -> Any:
    """The numbers of a contiguous tensor where they lie. `tensor.numpy()` would detach it, which is an operator."""
    memory = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    return numpy.frombuffer(memory, KINDS[tensor.dtype]).reshape(tensor.shape)


def _share(tokens: Any) -> float | None:
    """None for what is no text: of two numbers (a mask, labels)."""
    if ((tokens == tokens.min()) | (tokens == tokens.max())).all():
        return None
    return max(_filled(tokens), _filled(tokens[:, ::-1]))


def _filled(tokens: Any) -> float:
    """The share of the places behind the last number of each row that is not the filler."""
    ends = Counter(tokens[:, -1].tolist()).most_common(2)  # of two rows, one may be full
    return max(_filled_with(filler, tokens) for filler, _ in ends)


def _filled_with(filler: int, tokens: Any) -> float:
    """The share; 0 where it stands elsewhere, too, or where a row holds nothing else."""
    is_filler = tokens == filler
    if is_filler.all(axis=1).any():
        return 0.0
    filled = int(is_filler[:, ::-1].argmin(axis=1).sum())
    elsewhere = int(is_filler.sum()) - filled
    return filled / tokens.size if elsewhere <= ELSEWHERE * (tokens.size - filled) else 0.0
