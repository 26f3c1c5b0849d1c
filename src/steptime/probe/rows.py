"""Rows that the loss uses of a model's results, from the nodes of a graph: a node that picks some rows (a slice, an
index, labels to be ignored), and the nodes before it whose rows are independent of each other.

Of saved tensors only labels in main memory are read, and never where a hook packed them: it would run.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from steptime.probe.main_memory import bytes_at, readable

_ROW_WISE = """
Addmm Mm View UnsafeView ReshapeAlias Gelu Relu Silu Tanh Sigmoid NativeDropout NativeLayerNorm LogSoftmax Softmax Slice
Select Index IndexSelect ToCopy
"""
ROW_WISE = frozenset(f"{name}Backward0" for name in _ROW_WISE.split())
"""Nodes that compute each row, along the last dimension, by itself (torch 2.4 to 2.13)."""
ARITHMETIC = frozenset({"AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0"})
"""Nodes that do so where nothing is broadcast: a bias, a residual connection, a scale."""
PRODUCTS = {"MmBackward0": 1, "AddmmBackward0": 2}
"""Products that do so where their second factor, at this place, is a weight: an activation there is mixed by the first
factor, such as a graph's adjacency matrix."""
AS_IT_IS = frozenset({"TBackward0", "TransposeBackward0", "ToCopyBackward0"})
"""Nodes through which a weight goes to a product."""
PICKING = frozenset({"SliceBackward0", "SelectBackward0", "IndexBackward0", "IndexSelectBackward0"})
LEAVES = ("AccumulateGrad", "NoneType")
LABELS = "NllLossBackward0"
MOST_LABELS = 1 << 22
"""Labels that are looked at."""


def kept(node: Any) -> float:
    """Fraction of the rows of a node's input that go on; 1.0 if the node picks no rows, or if that cannot be seen."""
    name = type(node).__name__
    if name == LABELS:
        return _labelled(node)
    if name not in PICKING:
        return 1.0
    whole, part = tuple(node._saved_self_sym_sizes), tuple(node._input_metadata[0].shape)
    if len(whole) < 2 or not part or part[-1] != whole[-1] or 0 in whole:
        return 1.0
    fraction = float(torch.Size(part).numel() / torch.Size(whole).numel())
    return fraction if fraction < 1 else 1.0


def is_row_wise(node: Any) -> bool:
    """True if each row of the node's result depends only on the same row of its input."""
    name = type(node).__name__
    if name not in ROW_WISE | ARITHMETIC:
        return False
    if name in PRODUCTS:
        return _is_weight(node.next_functions[PRODUCTS[name]][0])
    shape = tuple(node._input_metadata[0].shape)
    if name in ARITHMETIC:
        taken = [(child, at) for child, at in node.next_functions if type(child).__name__ not in LEAVES]
        return len(shape) > 1 and all(tuple(child._input_metadata[at].shape) == shape for child, at in taken)
    if name in ("LogSoftmaxBackward0", "SoftmaxBackward0"):
        return len(shape) > 1 and int(node._saved_dim) in (-1, len(shape) - 1, (1 << 64) - 1)
    if name == "NativeLayerNormBackward0":
        return len(node._saved_normalized_shape) == 1
    if "View" in name or name in PICKING:
        before = tuple(node._saved_self_sym_sizes)
        return bool(shape) and bool(before) and before[-1] == shape[-1]
    return True


def _is_weight(node: Any) -> bool:
    """True if the node is of a leaf, perhaps transposed or converted."""
    while type(node).__name__ in AS_IT_IS:
        node = node.next_functions[0][0]
    return type(node).__name__ in LEAVES


def _labelled(node: Any) -> float:
    """The fraction of the labels that a loss does not ignore."""
    saved = node._raw_saved_target
    if saved.unpack_hook is not None or type(labels := saved.data) is not torch.Tensor:
        return 1.0
    plain = readable(labels) and labels.dtype is torch.int64 and labels.is_contiguous() and labels.ndim == 1
    count = int(labels.numel())
    if not plain or not 0 < count <= MOST_LABELS:
        return 1.0
    ignored = ctypes.c_int64(node._saved_ignore_index).value
    values = memoryview(bytes_at(labels.data_ptr(), 8 * count)).cast("q")
    return 1.0 - values.tolist().count(ignored) / float(count)
