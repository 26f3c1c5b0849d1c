"""What a variant's steps do, so that less work is not taken for faster work: which batches the model gets, how each
parameter moves, what is evaluated, and whether clocks and torch's own functions are what they were.

Tensors are kept as *sketches*: some sums of all their numbers with fixed signs, alike for alike tensors, whatever their
memory layout. The cosine of two gradients' sketches is about that of the gradients. They are taken in the steps that
are not timed, stay on the device, and are read together.
"""

from __future__ import annotations

import functools
import os
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.changes.applier import wrap_root
from steptime.probe.changes.traceable import dropped
from steptime.probe.objects import local_values, parameters_of, tensors_in

BUCKETS = 16
"""Numbers of a sketch."""
MOST = 1 << 22
"""Numbers of a tensor that a sketch looks at; of a larger one every so manieth."""
REPLACED = "replaced: "
"""How notes begin on functions that are no longer Python's or torch's own."""
CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
NUMBERS = ("randn", "rand", "randint", "randperm", "normal")
HERE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
TORCH = os.path.dirname(torch.__file__)


class WorkRecorder:
    """Its rows are part of those that parity.jsonl has for each step."""

    def __init__(self) -> None:
        self.looking = self.in_full = False
        """Whether batches and weights are looked at, and not only counted, in this step; whether each weight's way is
        kept."""
        self.pause: Callable[[int], None] = lambda start: None
        self._depth = 0
        self._inputs: list[str] = []
        self._batches: list[Any] = []
        self._evaluated: dict[str, int] = {}
        self._parameters: dict[str, Any] = {}
        self._weights: dict[str, Any] = {}
        self._moves: dict[str, Any] = {}

    def root(self, module: torch.nn.Module, names: Callable[[Any], str]) -> None:
        """Before a root module is called for the first time."""
        for parameter in parameters_of(module):
            name = names(parameter)
            if parameter.requires_grad:
                self._parameters[name] = parameter
        wrap_root(module, self._around)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._depth or torch.compiler.is_compiling():
                return call(*args, **kwargs)
            self._see(args, kwargs)
            self._depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1

        return called

    def _see(self, args: Any, kwargs: Any) -> None:
        try:
            tensors = [each for each in tensors_in((args, kwargs)) if not isinstance(each, torch.nn.Parameter)]
            if not torch.is_grad_enabled():
                for each in tensors[:1]:
                    shape = _shape(each, 1)
                    self._evaluated[shape] = self._evaluated.get(shape, 0) + (len(each) if each.dim() else 1)
                return
            self._inputs.append(" ".join(_shape(each) for each in tensors))
            if self.looking:
                start = time.perf_counter_ns()
                with torch.no_grad():
                    self._batches.append([sketch(each) for each in tensors])
                    if not self._moves:
                        self._moved()
                self.pause(start)
        except Exception:  # noqa: BLE001 - the probe's boundary: a batch of a kind that we cannot read goes unseen
            self._inputs.append("?")

    def _moved(self) -> None:
        """How the parameters have moved since the last look, and what new ones start from."""
        now = {name: sketch(parameter) for name, parameter in self._parameters.items()}
        ways = {name: now[name] - before for name, before in self._weights.items()}
        self._moves = {"still": [(name, torch.count_nonzero(way) == 0) for name, way in ways.items()]}
        if self.in_full:
            self._moves["updates"] = list(ways.items())
        new = now.keys() - self._weights.keys()
        self._moves["weights"] = [(name, self._parameters[name].numel(), now[name]) for name in now if name in new]
        self._weights = now

    def row(self) -> dict[str, Any]:
        """Of the step that has ended."""
        row = {"inputs": self._inputs, "batches": self._batches, "evaluated": list(self._evaluated.items())}
        row |= self._moves | {"dropped": sum(dropped)}
        self._inputs, self._batches, self._evaluated, self._moves = [], [], {}, {}
        dropped.clear()
        return row


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it is written: sketches are read."""
    written = {name: row[name] for name in ("inputs", "evaluated", "dropped", "iterators")}
    if row["batches"]:
        written["batches"] = [[_rounded(each) for each in batch] for batch in row["batches"]]
    if "still" in row:
        written["still"] = [name for name, still in row["still"] if still]
    for name in ("weights", "updates", "directions"):
        if row.get(name):
            written[name] = [(*known, _rounded(values)) for *known, values in row[name]]
    return written


def sketch(tensor: torch.Tensor) -> Any:
    """BUCKETS sums of a tensor's numbers, with fixed signs. Linear: the sketch of a difference is that of sketches."""
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
    """The sketch of a tensor of which only some rows are there (the gradient of a sparse embedding): that of the whole
    one, which is not made."""
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
    """1 or -1 for each row, always the same."""
    return ((rows * 2654435761) >> 15 & 1) * 2 - 1


def replaced() -> list[str]:
    """Which clocks, and which of torch's functions, are somebody else's."""
    found = [f"time.{name}" for name in CLOCKS if type(getattr(time, name)) is not types.BuiltinFunctionType]
    found += [f"torch.{name}" for name in NUMBERS if not _is_torchs(getattr(torch, name))]
    found += ["torch.Tensor.backward"] if not _is_torchs(torch.Tensor.backward) else []
    optimizers = {each for each in vars(torch.optim).values() if isinstance(each, type)}
    for each in sorted(optimizers, key=lambda kind: kind.__name__):
        for name in ("step", "zero_grad"):
            if hasattr(each, name) and not _is_torchs(getattr(each, name)):
                found.append(f"torch.optim.{each.__name__}.{name}")
    return found


def _is_torchs(function: Any) -> bool:
    """Whether the code of a function, and of what it wraps, is torch's own or ours."""
    while function is not None:
        code = getattr(function, "__code__", None)
        if code is not None and not code.co_filename.startswith((TORCH, HERE)):
            return False
        if code is None and type(function) not in (types.BuiltinFunctionType, type(torch._C.TensorBase.add)):
            return False
        function = getattr(function, "__wrapped__", None)
    return True


def _shape(tensor: torch.Tensor, first: int = 0) -> str:
    return "x".join(map(str, tensor.shape[first:])) or "1"


def _rounded(values: Any) -> list[float | str]:
    found = values.tolist()
    return [float(f"{each:.7g}") if abs(each) < float("inf") else "nan" for each in found]
