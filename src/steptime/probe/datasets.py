"""Datasets of a loader: facts about dataset and settings, and the fraction of a batch that is padding.

Rows of tokens are padded at their ends or fronts with one number that is nowhere else in them. Batches on the CPU are
read in memory with numpy, if the job has imported it: no method of the user's runs, and no mode or profiler of the job
records an operator.
"""

from __future__ import annotations

import ctypes
import dis
import os
import sys
import zlib
from collections import Counter, UserDict
from collections.abc import Iterator
from itertools import islice
from math import prod
from typing import Any

import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from steptime.probe import sites
from steptime.probe.main_memory import readable
from steptime.probe.objects import attributes, unasked
from steptime.probe.ours import pass_on

INDEXING = frozenset(
    {
        "RESUME",
        "NOP",
        "CACHE",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_CONST",
        "LOAD_SMALL_INT",
        "LOAD_ATTR",
        "BINARY_SUBSCR",
        "BUILD_TUPLE",
        "BUILD_LIST",
        "BUILD_MAP",
        "BUILD_CONST_KEY_MAP",
        "STORE_FAST",
        "RETURN_VALUE",
        "RETURN_CONST",
        "LOAD_FAST_LOAD_FAST",
        "STORE_FAST_STORE_FAST",
        "STORE_FAST_LOAD_FAST",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    }
)
"""Instructions of a function that only looks up attributes and indexes them (Python 3.10 to 3.14)."""


def iterator_facts(iterator: Any, number: int, site: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the fields of `LoaderFacts`. Reads attributes that torch's iterators have in torch 2.4 to 2.13."""
    dataset = iterator._dataset
    workers = int(iterator._num_workers)
    size = getattr(iterator._index_sampler, "batch_size", None) if iterator._auto_collation else None
    settings = {
        "dataset": _dataset_name(dataset),
        "dataset_length": None if isinstance(dataset, IterableDataset) else counted_length(dataset),
        "iterable": isinstance(dataset, IterableDataset),
        "in_memory_tensors": _in_memory(dataset),
        "batched_fetch": bool(iterator._auto_collation) and _fetches_batches(dataset),
        "batch_size": size if isinstance(size, int) else None,
        "workers": workers,
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None) if workers else None,
        "persistent_workers": bool(getattr(iterator, "_persistent_workers", False)),
        "pin_memory": bool(iterator._pin_memory),
        "collate": _name(iterator._collate_fn),
        "site": site,
        "item_site": _item_site(dataset),
    }
    loader = zlib.crc32(repr(settings).encode())
    return {**settings, "identity": number, "loader": loader, "seed": int(iterator._base_seed) % (1 << 31)}


def _name(function: Any) -> str:
    function = getattr(function, "func", function)  # functools.partial
    module = getattr(function, "__module__", "") or ""
    name = getattr(function, "__qualname__", "") or type(function).__qualname__
    return f"{module}.{name}" if module else str(name)


def _dataset_name(dataset: Any) -> str:
    name = type(dataset).__name__
    return f"{name}({_dataset_name(dataset.dataset)})" if isinstance(dataset, Subset) else name


COUNTING = INDEXING | {
    "LOAD_GLOBAL",
    "PUSH_NULL",
    "PRECALL",
    "CALL",
    "CALL_FUNCTION",
    "LOAD_METHOD",
    "CALL_METHOD",
    "BINARY_OP",
    "BINARY_ADD",
    "BINARY_SUBTRACT",
    "BINARY_MULTIPLY",
    "BINARY_FLOOR_DIVIDE",
    "COMPARE_OP",
    "IS_OP",
    "TO_BOOL",
    "UNARY_NOT",
    "NOT_TAKEN",
}
"""Instructions of a function that only counts what its object holds (Python 3.10 to 3.14)."""
COUNTS = frozenset({"len", "min", "max", "int"})
"""Builtin functions that it may call."""
SIZES = frozenset({"shape", "size", "numel"})
"""What it may ask tensors and arrays for."""
NUMBERS = (int, float, bool, type(None))


def counted_length(held: Any) -> int | None:
    """Returns the length of a dataset or sampler if no user code runs for that except arithmetic on its attributes;
    else None, because a __len__ may print, count its calls or read files."""
    if not hasattr(type(held), "__len__") or not _only_counts(held, DEEPEST):
        return None
    try:
        with unasked():
            return len(held)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: a __len__ may raise anything
        pass_on(error)
        return None


DEEPEST = 8
"""Depth of samplers, wrappers and datasets that hold one another."""


def _only_counts(held: Any, depth: int) -> bool:
    """True if `len` of an attribute runs no user code except arithmetic on what that holds in turn; numbers count, too.
    A library's or torch's may ask what it holds."""
    kind = type(held)
    function, own = getattr(kind, "__len__", None), attributes(held)
    if function is None or not depth:
        return kind in NUMBERS
    code = getattr(function, "__code__", None)
    if code is None or not (code.co_filename.startswith("<") or sites.whose(code.co_filename) == sites.USER):
        return all(_only_counts(each, depth - 1) for _, each in own if hasattr(type(each), "__len__"))
    named = dict(function.__globals__)
    for each in reversed(kind.__mro__):
        named |= vars(each)
    named |= dict(own)
    asked = {name for name in code.co_names if name not in SIZES and not (name in COUNTS and name not in named)}
    return (
        not any("__getattribute__" in vars(each) for each in kind.__mro__[:-1])
        and all(each.opname in COUNTING or "JUMP" in each.opname for each in dis.get_instructions(code))
        and all(name in named and _only_counts(named[name], depth - 1) for name in asked)
    )


def _fetches_batches(dataset: Any) -> bool:
    """True if one call reads a whole batch. Subset has __getitems__ too, which falls back to one call per item."""
    if isinstance(dataset, Subset):
        return _fetches_batches(dataset.dataset)
    return bool(getattr(type(dataset), "__getitems__", None))


def _in_memory(dataset: Any) -> bool:
    """True if an item is only an index into tensors in memory: TensorDataset, or views of such."""
    if isinstance(dataset, Subset):
        return _in_memory(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(_in_memory(part) for part in dataset.datasets)
    if isinstance(dataset, TensorDataset):
        return True
    return _only_indexes(dataset)


def _only_indexes(dataset: Any) -> bool:
    """True if the user's __getitem__ calls nothing and only indexes tensors or arrays held as attributes."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    if code is None or code.co_freevars or code.co_cellvars:
        return False
    held = getattr(dataset, "__dict__", {})
    read, indexed = set(), False
    for instruction in dis.get_instructions(code):
        subscript = instruction.opname == "BINARY_OP" and instruction.argrepr == "[]"  # from 3.14
        if instruction.opname not in INDEXING and not subscript:
            return False
        indexed |= subscript or instruction.opname == "BINARY_SUBSCR"
        if instruction.opname == "LOAD_ATTR":
            read.add(instruction.argval)
    return indexed and bool(read) and all(_is_array(held.get(name)) for name in read)


def _is_array(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, torch.Tensor) or (kind.__module__ == "numpy" and kind.__name__ == "ndarray")


def _item_site(dataset: Any) -> dict[str, Any] | None:
    """Returns the line of the function that reads an item (or of the iterator that yields items); None if it is not in
    the user's or an installed package's code."""
    while isinstance(dataset, Subset | ConcatDataset):
        dataset = dataset.datasets[0] if isinstance(dataset, ConcatDataset) else dataset.dataset
    names = ("__iter__",) if isinstance(dataset, IterableDataset) else ("__getitems__", "__getitem__")
    for name in names:
        code = getattr(getattr(type(dataset), name, None), "__code__", None)
        if code is not None and sites.whose(code.co_filename) != sites.INNER:
            function = getattr(code, "co_qualname", code.co_name)
            return sites.line_at((os.path.abspath(code.co_filename), code.co_firstlineno, function))
    return None


LEAST_ROWS, LEAST_LENGTH = 2, 8
MOST_NUMBERS = 1 << 20
"""Numbers in a batch: 8 MB, which takes a few milliseconds."""
MOST_PARTS = 16
KINDS = {torch.int64: "int64", torch.int32: "int32", torch.int16: "int16"}
ELSEWHERE = 0.01
"""Largest fraction of the unpadded places that may hold the filler; a number that is more frequent is no filler."""
DEPTH = 3
"""Depth of the dictionaries, lists and tuples in a batch that are searched."""


Padded = tuple[float, tuple[int, int], tuple[int, int], float]
"""Facts of a tensor that looks like tokens: its fraction of padding, its shape, its smallest and largest number, and
the fraction of its length that is beyond the longest row."""


def padded_share(batch: Any) -> Padded | None:
    """Returns the facts of a batch's first tensor that looks like tokens; None without one, or without numpy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    with torch._C.DisableTorchFunction():
        arrays = (_array(each, numpy) for each in _tensors(batch, DEPTH))
        found = ((_share(each), each.shape, (int(each.min()), int(each.max()))) for each in arrays)
        return next(((share[0], shape, ends, share[1]) for share, shape, ends in found if share is not None), None)


def reads_tokens(shape: tuple[int, int], read: tuple[int, ...]) -> bool:
    """True if an embedding with input of shape `read` reads this batch: whole, one device's part of it, in one row, or
    without the last number of each row, which is only predicted."""
    rows, length = shape
    whole = len(read) > 1 and read[0] >= LEAST_ROWS and read[-1] in (length, length - 1)
    return whole or prod(read) in (rows * length, rows * (length - 1))


def _tensors(batch: Any, depth: int) -> Iterator[Any]:
    """Yields the plain tensors of tokens' shape. Opens exact types only: subclasses would run code of the user's."""
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
    """True if type and shape fit, and the numbers are contiguous in memory."""
    if tensor.dtype not in KINDS or tensor.dim() != 2 or not readable(tensor) or not tensor.is_contiguous():
        return False
    rows, length = tensor.shape
    return bool(rows >= LEAST_ROWS and length >= LEAST_LENGTH and rows * length <= MOST_NUMBERS)


def _array(tensor: torch.Tensor, numpy: Any) -> Any:
    """Returns the numbers of a contiguous tensor as a numpy array without a copy. `tensor.numpy()` would detach it,
    which is an operator."""
    memory = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    return numpy.frombuffer(memory, KINDS[tensor.dtype]).reshape(tensor.shape)


def _share(tokens: Any) -> tuple[float, float] | None:
    """Returns the fraction of padding, and of the length beyond the longest row; None if there are only two different
    numbers, as in masks and labels."""
    if ((tokens == tokens.min()) | (tokens == tokens.max())).all():
        return None
    return max(_filled(tokens), _filled(tokens[:, ::-1]))


def _filled(tokens: Any) -> tuple[float, float]:
    """Returns the fractions of places after the last number of each row that is not the filler."""
    ends = Counter(tokens[:, -1].tolist()).most_common(2)  # of two rows, one may be full
    return max(_filled_with(filler, tokens) for filler, _ in ends)


def _filled_with(filler: int, tokens: Any) -> tuple[float, float]:
    """Returns the fractions for one filler; 0 if it is elsewhere too often, or if a row holds nothing else. At the
    start of all rows, as decoders have it, it is none of them."""
    is_filler = tokens == filler
    if is_filler[:, 0].all():
        is_filler = is_filler[:, 1:]
    if is_filler.all(axis=1).any():
        return 0.0, 0.0
    ends = is_filler[:, ::-1].argmin(axis=1)
    filled = int(ends.sum())
    elsewhere = int(is_filler.sum()) - filled
    if elsewhere > ELSEWHERE * (is_filler.size - filled):
        return 0.0, 0.0
    return filled / tokens.size, int(ends.min()) / tokens.shape[1]
