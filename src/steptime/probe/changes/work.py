"""Work of a variant's steps, so that less work does not count as faster work. It covers the model's batches, the
movement of each parameter, evaluations, and whether clocks and torch's functions are the original ones.

Tensors are stored as sketches. They are taken in untimed steps, stay on the device, and are read together.
"""

from __future__ import annotations

import math
import os
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.changes.applier import wrap_top_module
from steptime.probe.changes.carried import (
    CarriedState,
    LivingObjects,
    active_dropout,
    computes_low,
    random_state,
    rows_of,
    training_share,
)
from steptime.probe.changes.sketches import sketch
from steptime.probe.changes.traceable import dropped
from steptime.probe.objects import SideTable, being_traced, modules_of, parameters_of, tensors_in, unseen
from steptime.probe.ours import pass_on

AS_THEY_ARE = ("dropout", "training", "low", "drew", "options", "moving", "kernels", "launches", "operators")
"""Fields of a row that need no conversion."""
LOOKS = (1, 5, 17, 34, 67, 134)
"""Steps after which all objects are read: modules that average the weights are searched for, and a timed run compares
its carried state with that after the next step. The first looks are at steps that are rehearsed, too, so a later one
shows work that is skipped from some step on; no number divides the distances of all the later ones, so one of them
shows work that is skipped in some steps of two, four or ten."""
REPLACED = "replaced: "
"""Start of notes about functions that are no longer Python's or torch's own."""
CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
NUMBERS = ("randn", "rand", "randint", "randperm", "normal")
HERE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
TORCH = os.path.dirname(torch.__file__)


class WorkRecorder:
    """Recorder of each step's work, for the rows of parity.jsonl."""

    def __init__(self) -> None:
        self.looking = self.in_full = False
        """looking: batches and weights of this step are sketched, not only counted. in_full: weights' movements,
        too."""
        self.pause: Callable[[int], None] = lambda start: None
        self._depth = 0
        self._inputs: list[str] = []
        self._batches: list[Any] = []
        self._evaluated: dict[str, int] = {}
        self._parameters: dict[str, Any] = {}
        self._weights: dict[str, Any] = {}
        self._moves: dict[str, Any] = {}
        self.carried = CarriedState()
        self._top_modules: list[weakref.ref[torch.nn.Module]] = []
        self._others: SideTable[bool] = SideTable()
        self._state: dict[str, Any] = {}
        self._drawn: Any = None

    def top_module(self, module: torch.nn.Module, names: Callable[[Any], str]) -> None:
        """Called before the first call of a top module."""
        for parameter in parameters_of(module):
            name = names(parameter)
            if parameter.requires_grad:
                self._parameters[name] = parameter
        if self.in_full:
            self.carried.first(self._parameters)
        self._top_modules.append(weakref.ref(module))
        self._others.keep(module, True)
        wrap_top_module(module, self._around)

    def _find_others(self, living: LivingObjects) -> None:
        """Finds modules of a trained top module's class, and modules that hold one (averages of weights), to count
        their evaluations, too."""
        top_modules = [each for reference in self._top_modules if (each := reference()) is not None]
        kinds, inside = (
            {type(each) for each in top_modules},
            {id(part) for top_module in top_modules for part in modules_of(top_module)},
        )
        for each in living.modules:
            if id(each) in inside or self._others.of(each):
                continue
            if any(type(part) in kinds for part in (each, *each.__dict__.get("_modules", {}).values())):
                self._others.keep(each, True)
                wrap_top_module(each, self._around_other)

    def _around_other(self, call: Callable[..., Any]) -> Callable[..., Any]:
        counted = self._around(call)

        def called(*args: Any, **kwargs: Any) -> Any:
            return (call if torch.is_grad_enabled() else counted)(*args, **kwargs)

        return called

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._depth or torch.compiler.is_compiling() or being_traced():  # a graph would have our operators
                return call(*args, **kwargs)
            with unseen():
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
                    if not self._moves or self._parameters.keys() - self._weights.keys():
                        self._moved()
                    self._look_at_state((args, kwargs))
                self.pause(start)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: a batch that we cannot read goes unseen
            pass_on(error)
            self._inputs.append("?")

    def _look_at_state(self, arguments: Any) -> None:
        """Stores the module modes and random state at a step's first call, and the samples at each call."""
        try:
            if not self._state:
                top_modules = [each for reference in self._top_modules if (each := reference()) is not None]
                self._state = {
                    "dropout": active_dropout(top_modules),
                    "training": training_share(top_modules),
                    "low": computes_low(top_modules),
                    "samples": [],
                }
                self._drawn = random_state()
            self._state["samples"] += rows_of(arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: what is not seen is not compared
            pass_on(error)
            self._drawn = None

    def backward(self) -> None:
        """Called when a backward starts. Stores whether the forwards before it drew random numbers."""
        if self._drawn is not None:
            self._state["drew"], self._drawn = random_state() != self._drawn, None

    def carried_state(self, steps: int, last: int | None) -> dict[str, Any]:
        """Returns fields about the carried state, between two steps. last: a rehearsal's last step, whose row has the
        changes since the first one; None for a timed run, which counts changed numbers in some steps."""
        looks, ends = steps in LOOKS, steps == last if last is not None else steps - 1 in LOOKS
        if not (looks or ends):
            return {}
        start = time.perf_counter_ns()
        row: dict[str, Any] = {}
        with torch.no_grad():
            if ends:
                carried, own = self.carried, self._parameters
                row = carried.moved(own) if last is not None else {"moving": carried.moving(own)}
            if looks:
                living = LivingObjects()
                self._find_others(living)
                if last is None or steps == 1:
                    self.carried.look(self._parameters, living)
        self.pause(start)
        return row

    def _moved(self) -> None:
        """Stores how the parameters have moved since the last look, and the first sketches of new ones."""
        new = {name: sketch(each) for name, each in self._parameters.items() if name not in self._weights}
        if not self._moves:
            now = {name: sketch(self._parameters[name]) for name in self._weights}
            ways = {name: now[name] - before for name, before in self._weights.items()}
            self._moves = {
                "still": [(name, torch.count_nonzero(way) == 0) for name, way in ways.items()],
                "weights": [],
            }
            if self.in_full:
                self._moves["updates"] = list(ways.items())
            self._weights = now
        self._moves["weights"] += [(name, self._parameters[name].numel(), first) for name, first in new.items()]
        self._weights |= new

    def row(self) -> dict[str, Any]:
        """Returns the work of the step that has ended."""
        row = {"inputs": self._inputs, "batches": self._batches, "evaluated": list(self._evaluated.items())}
        row |= self._moves | self._state | {"dropped": sum(dropped)}
        self._inputs, self._batches, self._evaluated, self._moves, self._state = [], [], {}, {}, {}
        dropped.clear()
        return row


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row as it is written, with sketches converted to numbers."""
    written = {name: row[name] for name in ("inputs", "evaluated", "dropped", "iterators")}
    if row["batches"]:
        written["batches"] = [[_rounded(each) for each in batch] for batch in row["batches"]]
    if "still" in row:
        written["still"] = [name for name, still in row["still"] if still]
    written |= {name: row[name] for name in AS_THEY_ARE if name in row}
    if row.get("updated"):
        written["updated"] = [math.hypot(*map(float, norms)) for norms in zip(*row["updated"], strict=True)]
        written["updated"] = written["updated"] if all(map(math.isfinite, written["updated"])) else []
    written["samples"] = list(map(_finite, row.get("samples", ())))
    for name in ("ways", "carried", "buffers"):
        written[name] = [(*known, list(map(_finite, values))) for *known, values in row.get(name, ())]
    for name in ("weights", "updates", "directions"):
        if row.get(name):
            written[name] = [(*known, _rounded(values)) for *known, values in row[name]]
    return written


def replaced() -> list[str]:
    """Returns the clocks, and functions of torch's, that are no longer the original ones."""
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
    """True if the code of a function, and of those that it wraps, is torch's or ours."""
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


def _finite(value: float) -> float | str:
    return value if abs(value) < float("inf") else "nan"


def _rounded(values: Any) -> list[float | str]:
    found = values.tolist()
    return [_finite(float(f"{each:.7g}")) for each in found]
