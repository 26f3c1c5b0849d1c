"""State that a job carries from step to step besides the parameters of its top modules: averages of weights,
statistics, optimizer options, module modes, random numbers. A candidate that drops some of it is not faster."""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress
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


class LivingObjects:
    """All plain tensors and modules of this process, whoever holds them. They are found without a loop in Python: 40 ms
    for the 290,000 objects of a process that has imported torch, where a loop takes 65 for each kind."""

    def __init__(self) -> None:
        objects, plain = gc.get_objects(), {torch.Tensor, torch.nn.Parameter}
        kinds = plain.union(_classes_of(torch.nn.Module))
        found = list(compress(objects, map(kinds.__contains__, map(type, objects))))
        self.tensors: list[torch.Tensor] = [each for each in found if type(each) in plain]
        self.modules: list[torch.nn.Module] = [each for each in found if type(each) not in plain]


def _classes_of(kind: type) -> Iterator[type]:
    """Yields a class and all that derive from it."""
    yield kind
    subclasses: list[type] = type.__subclasses__(kind)
    for each in subclasses:
        yield from _classes_of(each)


class CarriedState:
    """Tensors alive between two steps that look like a parameter or buffer: averages of weights, running statistics,
    optimizer state. Owners do not matter, so copies kept by hand count, too."""

    def __init__(self) -> None:
        self._before: set[tuple[str, tuple[float, ...]]] = set()
        self._buffers: set[tuple[str, tuple[float, ...]]] = set()
        self._first: dict[str, Any] = {}
        self._held: list[weakref.ref[torch.Tensor]] = []

    def first(self, parameters: dict[str, Any]) -> None:
        """Stores the weights before the first step."""
        for name, parameter in parameters.items():
            if name not in self._first:
                self._first[name] = sketch(parameter)

    def look(self, parameters: dict[str, Any], living: LivingObjects) -> None:
        """Stores the tensors between two steps; a later `moved` or `moving` returns the changes since."""
        carried = _carried(parameters, living.tensors)
        self._held = list(map(weakref.ref, carried))
        self._before, self._buffers = set(_sketched(carried)), set(_buffers(living.modules))

    def moved(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Returns, between two steps, each parameter's movement since the first weights, with their norm and dtype, and
        the carried tensors and the buffers that have changed since the last look."""
        ways, living = [], LivingObjects()
        for name, parameter in parameters.items():
            if name in self._first:
                way = sketch(parameter) - self._first[name]
                ways.append((name, str(parameter.dtype), float(self._first[name].norm()), way.tolist()))
        carried = _sketched(_carried(parameters, living.tensors)) if self._before else []
        changed = [each for each in carried if each not in self._before]
        buffers = [each for each in _buffers(living.modules) if each not in self._buffers]
        return {"ways": ways, "carried": changed, "buffers": buffers}

    def moving(self, parameters: dict[str, Any]) -> int:
        """Returns the count of numbers in the carried tensors that have changed since the last look. Other tensors are
        searched only if one of those is gone, as when a new tensor takes its place in each step."""
        held = [tensor for reference in self._held if (tensor := reference()) is not None]
        tensors = held if len(held) == len(self._held) else LivingObjects().tensors
        carried = set(_sketched(_carried(parameters, tensors)))
        return sum(prod(map(int, shape.split("x"))) for shape, _ in carried - self._before)


def _carried(parameters: dict[str, Any], tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors with a parameter's shape, and vectors with at least FLAT of all parameters' numbers, but for
    parameters and their gradients."""
    own = {id(each) for parameter in parameters.values() for each in (parameter, parameter.grad)}
    shapes = {tuple(each.shape) for each in parameters.values() if each.numel() > 1}
    flat = FLAT * sum(each.numel() for each in parameters.values())
    return [each for each in tensors if id(each) not in own and _is_like(each, shapes, flat)]


def _buffers(modules: Iterable[torch.nn.Module]) -> list[tuple[str, tuple[float, ...]]]:
    """Returns shape and sketch of the buffers of modules, those of copies, too."""
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
    """True under autocast, or if a parameter is in a 16-bit dtype."""
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
    """Returns one number per sample of a batch: the sum of the sample's numbers with fixed signs."""
    tensors = [each for each in tensors_in(values) if each.dim() > 1 and not isinstance(each, torch.nn.Parameter)]
    if not tensors:
        return []
    largest = max(tensors, key=lambda each: each.numel())
    if not largest.numel() or largest.is_complex() or largest.layout is not torch.strided:
        return []
    flat = largest.detach().reshape(len(largest), -1).to(torch.float64)
    signs = torch.arange(flat.shape[1], device=flat.device).mul_(2654435761).bitwise_right_shift_(15).bitwise_and_(1)
    return [float(f"{each:.9g}") for each in (flat @ (signs * 2 - 1).to(torch.float64)).tolist()]
