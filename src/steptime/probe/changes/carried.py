"""State that a job carries from step to step besides the parameters of its top modules: averages of weights,
statistics, optimizer options, module modes, random numbers. A candidate that drops some of it is not faster."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

import torch

from steptime.probe.changes.sketches import sketch
from steptime.probe.objects import local_values, modules_of, parameters_of, tensors_in
from steptime.probe.ours import pass_on

MOST_CARRIED = 4096
"""Most tensors that are sketched; with more, none is."""
FLAT = 0.2
"""Least size of a vector, as a fraction of all trained numbers, that may be an average of the weights in one piece."""
IGNORED_OPTIONS = frozenset({"params", "foreach", "fused", "capturable", "differentiable", "initial_lr", "maximize"})
"""Optimizer options about how it computes, or stored by a scheduler."""


class CarriedState:
    """Tensors alive between two steps that look like a parameter or buffer: averages of weights, running statistics,
    optimizer state. Owners do not matter, so copies kept by hand count, too."""

    def __init__(self) -> None:
        self._before: set[tuple[str, tuple[float, ...]]] = set()
        self._buffers: set[tuple[str, tuple[float, ...]]] = set()
        self._first: dict[str, Any] = {}

    def first(self, parameters: dict[str, Any]) -> None:
        """Stores the weights before the first step."""
        for name, parameter in parameters.items():
            if name not in self._first:
                self._first[name] = sketch(parameter)

    def look(self, parameters: dict[str, Any]) -> None:
        """Stores the tensors between two steps; a later `moved` returns the changes since."""
        self._before, self._buffers = set(self._carried(parameters)), set(_buffers())

    def moved(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Returns, between two steps, each parameter's movement since the first weights, with their norm and dtype, and
        the carried tensors and the buffers that have changed since the last look."""
        ways = []
        for name, parameter in parameters.items():
            if name in self._first:
                way = sketch(parameter) - self._first[name]
                ways.append((name, str(parameter.dtype), float(self._first[name].norm()), way.tolist()))
        changed = [each for each in self._carried(parameters) if each not in self._before] if self._before else []
        buffers = [each for each in _buffers() if each not in self._buffers]
        return {"ways": ways, "carried": changed, "buffers": buffers}

    def moving(self, parameters: dict[str, Any]) -> int:
        """Returns the count of numbers in the carried tensors that have changed since the last look."""
        return sum(prod(map(int, shape.split("x"))) for shape, _ in set(self._carried(parameters)) - self._before)

    def _carried(self, parameters: dict[str, Any]) -> list[tuple[str, tuple[float, ...]]]:
        """Returns shape and sketch of tensors with a parameter's shape, and of vectors with at least FLAT of all
        parameters."""
        own = {id(each) for each in parameters.values()}
        gradients = {id(each.grad) for each in parameters.values()}
        shapes = {tuple(each.shape) for each in parameters.values() if each.numel() > 1}
        flat = FLAT * sum(each.numel() for each in parameters.values())
        tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
        others = [each for each in tensors if id(each) not in own and id(each) not in gradients]
        found = [each for each in others if _is_like(each, shapes, flat)]
        return _sketched(found)


def _buffers() -> list[tuple[str, tuple[float, ...]]]:
    """Returns shape and sketch of the buffers of all modules, those of copies, too."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    buffers = {id(each): each for module in modules for each in (module.__dict__.get("_buffers") or {}).values()}
    return _sketched([each for each in buffers.values() if isinstance(each, torch.Tensor) and _is_like(each, None, 0)])


def _sketched(found: list[torch.Tensor]) -> list[tuple[str, tuple[float, ...]]]:
    """Shapes and sketches of readable tensors; [] for more than MOST_CARRIED."""
    return list(filter(None, map(_carried_tensor, found))) if len(found) <= MOST_CARRIED else []


def _is_like(tensor: torch.Tensor, shapes: set[tuple[int, ...]] | None, flat: float) -> bool:
    """True if a readable tensor may be an average of parameters of these shapes (None: of any)."""
    try:
        flat_one = tensor.dim() == 1 and tensor.numel() >= flat > 0
        if shapes is not None and tuple(tensor.shape) not in shapes and not flat_one:
            return False
        plain = tensor.is_floating_point() and tensor.layout is torch.strided and tensor.grad_fn is None
        # A sharded model frees the storage of what it has gathered.
        return plain and tensor.device.type != "meta" and tensor.untyped_storage().nbytes() > 0
    except Exception as error:  # noqa: BLE001 - the probe's boundary: what vmap or a captured graph has left is not read
        pass_on(error)
        return False


def _carried_tensor(tensor: torch.Tensor) -> tuple[str, tuple[float, ...]] | None:
    try:
        return "x".join(map(str, tensor.shape)) or "1", tuple(sketch(local_values(tensor)).tolist())
    except Exception as error:  # noqa: BLE001 - the probe's boundary: what cannot be read after all is left out
        pass_on(error)
        return None


def options_of(optimizer: torch.optim.Optimizer) -> list[tuple[str, int]]:
    """Returns the options of each optimizer group as JSON, with the count of its numbers."""
    found: Counter[str] = Counter()
    for group in optimizer.param_groups:
        options = {name: _plain(value) for name, value in group.items() if name not in IGNORED_OPTIONS}
        text = json.dumps({name: value for name, value in sorted(options.items()) if value is not None})
        found[text] += sum(each.numel() for each in group["params"])
    return list(found.items())


def _plain(value: Any) -> Any:
    """Returns a number, a string or a list of these; None for other values."""
    if isinstance(value, torch.Tensor):  # of a device it is not asked: a graph may be captured
        value = value.item() if value.numel() == 1 and value.device.type == "cpu" else None
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, bool | int | str) else None


def active_dropout(modules: Iterable[torch.nn.Module]) -> float:
    """Returns the sum of the probabilities of dropouts in training mode."""
    return float(sum(_dropout_of(each) for module in modules for each in modules_of(module) if each.training))


def _dropout_of(module: torch.nn.Module) -> float:
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return float(module.p)
    return float(module.dropout) if isinstance(module, torch.nn.RNNBase | torch.nn.MultiheadAttention) else 0.0


def training_share(modules: Iterable[torch.nn.Module]) -> float:
    """Returns the fraction of the modules in training mode."""
    modes = [each.training for module in modules for each in modules_of(module)]
    return sum(modes) / len(modes) if modes else 1.0


def computes_low(modules: Iterable[torch.nn.Module]) -> bool:
    """True under autocast, or if a parameter is in a 16-bit format."""
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        return True
    return any(each.dtype.itemsize == 2 for module in modules for each in parameters_of(module))


def random_state() -> tuple[bytes, ...]:
    """Returns the states of torch's random generators, of the CPU and of each device in use."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return tuple(bytes(each.numpy()) for each in states)


def rows_of(values: Any) -> list[float]:
    """Returns a number for each sample of a batch: the sum of its numbers with fixed signs."""
    tensors = [each for each in tensors_in(values) if each.dim() > 1 and not isinstance(each, torch.nn.Parameter)]
    if not tensors:
        return []
    largest = max(tensors, key=lambda each: each.numel())
    if not largest.numel() or largest.is_complex() or largest.layout is not torch.strided:
        return []
    flat = largest.detach().reshape(len(largest), -1).to(torch.float64)
    signs = torch.arange(flat.shape[1], device=flat.device).mul_(2654435761).bitwise_right_shift_(15).bitwise_and_(1)
    return [float(f"{each:.9g}") for each in (flat @ (signs * 2 - 1).to(torch.float64)).tolist()]
