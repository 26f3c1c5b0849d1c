"""Observer of every operator in a step: which one first made a value that is not finite, and from which inputs.

Every such value has an origin: the operator that made it from finite ones, a constant that the user wrote, a batch, a
parameter, another rank. Origins are passed from inputs to outputs by the memory of the tensors, so that the origin of a
bad loss or gradient is known. Harmless infinities (masks) never reach either.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from steptime.probe.numerics.batches import Batches, is_mask
from steptime.probe.numerics.values import (
    CallSite,
    ModuleNames,
    fills_storage,
    is_finite,
    is_floating,
    place_of,
    range_of,
    rows_not_finite,
    storage_of,
)
from steptime.probe.objects import tensors_in, unasked
from steptime.probe.ours import pass_on
from steptime.probe.recorder import json_number
from steptime.probe.sites import line_of

UNREAD = (
    "empty",
    "new_empty",
    "resize",
    "set_",
    "record_stream",
    "_local_scalar_dense",
    "is_pinned",
    "detach",
    "alias",
)
"""Operators whose output is not computed: memory still to be filled, and views."""
COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional")
"""Namespaces of collectives, whose outputs are not ready when the call returns."""
MOST_ORIGINS = 2000
"""Most origins of a window; later ones count as the last."""
MOST_CARRIED = 8
"""Most origins of one tensor: the earliest ones."""
MOST_RANGES = 8
"""Most inputs that are described."""
OPERATOR, CONSTANT, BATCH = "operator", "constant", "batch"
PARAMETER, COLLECTIVE, OUTSIDE = "parameter", "collective", "outside"
"""Kinds of origins: made from finite values, written by the user, from a loader, in a parameter before the first
observed step, received from another rank, and none of these."""
_DISABLED = torch._C._disabled_torch_dispatch_impl
_sequence = getattr(torch.autograd, "_get_sequence_nr", None)
_current_node = getattr(torch._C, "_current_autograd_node", None)


@dataclass
class FirstNonFinite:
    """Origin of a value that is not finite. number: index among the origins. facts: fields of `NonFiniteOrigin`."""

    number: int
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def deliberate(self) -> bool:
        return self.kind == CONSTANT


@dataclass
class _OperatorKind:
    """Facts about an operator from its schema. skipped: its output is a view or not computed. collective: the output
    comes later. mutated: positions of the arguments that it writes to. names: of its arguments."""

    name: str
    skipped: bool
    collective: bool
    mutated: tuple[int, ...]
    names: tuple[str, ...]


@dataclass
class _Before:
    """Argument that an operator will overwrite. finite, described: its values before."""

    tensor: Any
    finite: bool
    described: dict[str, Any]


class OperatorObserver(TorchDispatchMode):  # type: ignore[misc]
    """Observer of the outputs of every operator while `active`. failed: function called once, with an error of ours."""

    def __init__(self, batches: Batches, names: ModuleNames, failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self.active = False
        self.step = 0
        self.updating = False
        self.looked_at = 0
        self.origins: list[FirstNonFinite] = []
        self.parameters: dict[int, str] = {}
        self.read: tuple[int, ...] = ()
        """Origins of the newest bad value that the job has read (item)."""
        self.scalar: tuple[int, ...] = ()
        """Origins of the newest bad value with one element: a loss, if the job ends because of it."""
        self._batches, self._names, self._failed = batches, names, failed
        self._carried: dict[int, tuple[int, ...]] = {}
        self._reduced: set[int] = set()
        self._forward: dict[int, tuple[CallSite, str]] = {}
        self._kinds: dict[Any, _OperatorKind] = {}

    def next_step(self, step: int) -> None:
        """Starts a step, in which graph nodes are numbered again."""
        self.step = step
        self._forward.clear()

    def origins_of(self, tensors: Any) -> tuple[int, ...]:
        """Returns the numbers of the origins of the tensors' bad values."""
        found: tuple[int, ...] = ()
        for tensor in tensors:
            found += self._carried.get(storage_of(tensor)) or self._foreign(tensor)
        return tuple(sorted(set(found))[:MOST_CARRIED])

    # -- every operator --------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        if any(getattr(kind, "__torch_dispatch__", _DISABLED) is not _DISABLED for kind in types):
            return NotImplemented  # a subclass (DTensor): what it is made of comes by again
        kind, before = None, []
        try:
            kind = self._kinds.get(func) or self._kind(func)
            with unasked():
                before = [_before(tensor) for tensor in _written(kind, args)] if not kind.skipped else []
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the job goes on unchecked
            self._fail(error)
            pass_on(error)
        output = func(*args, **kwargs)
        try:
            if kind is not None and self.active:
                with unasked():  # this mode is below the job's, none of which is asked here: functions' modes would be
                    self._look(kind, args, kwargs, output, before)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the job goes on unchecked
            self._fail(error)
            pass_on(error)
        return output

    def _fail(self, error: Exception) -> None:
        self.active = False
        self._failed(error)

    def _kind(self, func: Any) -> _OperatorKind:
        schema = func._schema
        name = schema.name
        plain = name.partition("::")[2]
        arguments = schema.arguments
        writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments]
        views = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
        known = _OperatorKind(
            name,
            skipped=views or plain.startswith(UNREAD),
            collective=name.startswith(COLLECTIVES),
            mutated=tuple(position for position, write in enumerate(writes) if write),
            names=tuple(argument.name for argument in arguments),
        )
        self._kinds[func] = known
        return known

    def _look(self, kind: _OperatorKind, args: Any, kwargs: Any, output: Any, before: list[_Before]) -> None:
        self.looked_at += 1
        self._remember_forward(kind)
        if kind.collective:
            self._reduced.update(storage_of(tensor) for tensor in tensors_in(args))
        elif kind.skipped:
            self._skipped(kind, args, output)
        else:
            results = list(_results(kind, args, kwargs, output))
            bad = [tensor for tensor in results if not is_finite(tensor)]
            for tensor in results:
                if fills_storage(tensor) and not any(tensor is each for each in bad):
                    self._made_anew(storage_of(tensor))
            if bad:
                self._not_finite(kind, args, kwargs, bad, before)

    def _skipped(self, kind: _OperatorKind, args: Any, output: Any) -> None:
        if "_local_scalar_dense" in kind.name and is_floating(args[0]) and not is_finite(args[0]):
            self.read = self.origins_of([args[0]])
        elif "empty" in kind.name:
            for tensor in tensors_in(output):
                self._made_anew(storage_of(tensor))

    def _made_anew(self, key: int) -> None:
        """Forgets the origins in this memory, which now holds only new values."""
        self._carried.pop(key, None)
        self._reduced.discard(key)

    def _remember_forward(self, kind: _OperatorKind) -> None:
        """Stores the place of an operator by its graph node's number, which was assigned right before."""
        if _sequence is None or not torch.is_grad_enabled():
            return
        key = _sequence() - 1
        if key not in self._forward:
            self._forward[key] = (place_of(sys._getframe(1)), kind.name)

    # -- what is not finite ----------------------------------------------------------------------------------------

    def _not_finite(self, kind: _OperatorKind, args: Any, kwargs: Any, bad: list[Any], before: list[_Before]) -> None:
        inputs = list(_inputs(kind, args, kwargs, before))
        broken = [(name, tensor) for name, tensor, finite in inputs if not finite]
        if self._batches.loading and any(storage_of(tensor) not in self._carried for _, tensor in broken):
            return  # a sample that was not finite already: the batch is looked at when it has arrived
        carried = self.origins_of(tensor for _, tensor in broken)
        scalars = dict(_scalars(kind, args, kwargs))
        explicit = any(isinstance(value, float) and not math.isfinite(value) for value in scalars.values())
        makes_nan = any(bool(torch.isnan(tensor).any()) for tensor in bad)
        had_nan = any(_has_nan(tensor, before) for _, tensor in broken)
        if not broken:
            born = self._born(CONSTANT if explicit and not makes_nan else OPERATOR)
        elif makes_nan and not had_nan and all(self.origins[each].deliberate for each in carried):
            born = self._born(OPERATOR)  # of infinities that the user wrote: a row that is masked as a whole
        else:
            born = None
        if born is not None:
            if not born.facts:
                ranges = [_described(tensor, name, before) for name, tensor, _ in inputs[:MOST_RANGES]]
                born.facts = self._facts(kind, ranges, bad, scalars)
            born.facts.setdefault("sources", [self.origins[each].facts for each in carried[:2]])
            carried = (born.number,)
        elif makes_nan and not had_nan:
            self._became_nan(carried, kind)
        for tensor in bad:
            self._carried[storage_of(tensor)] = carried
        if any(tensor.numel() == 1 for tensor in bad):
            self.scalar = carried

    def _born(self, kind: str) -> FirstNonFinite:
        if len(self.origins) >= MOST_ORIGINS:
            return self.origins[-1]
        origin = FirstNonFinite(len(self.origins), kind)
        self.origins.append(origin)
        return origin

    def _became_nan(self, carried: tuple[int, ...], kind: _OperatorKind) -> None:
        """Records that an infinity has become NaN here, with its origin."""
        for each in carried:
            origin = self.origins[each]
            if not origin.deliberate and "became_nan" not in origin.facts:
                origin.facts["became_nan"] = self._where(kind)
                return

    def _foreign(self, tensor: Any) -> tuple[int, ...]:
        """Returns the origin of a bad tensor that no observed operator made; () for others."""
        if not is_floating(tensor) or is_finite(tensor):
            return ()
        key = storage_of(tensor)
        born = self._born(self._foreign_kind(tensor, key))
        if not born.facts:
            born.facts = {
                "kind": born.kind,
                "step": self.step,
                "name": self.parameters.get(key, ""),
                "outputs": [range_of(tensor)],
                "rows": rows_not_finite(tensor),
                **self._where(None),
            }
            if born.kind == BATCH:
                born.facts["samples"] = self._batches.samples(born.facts["rows"])
        self._carried[key] = (born.number,)
        return (born.number,)

    def _foreign_kind(self, tensor: Any, key: int) -> str:
        if key in self._reduced:
            return COLLECTIVE
        if key in self.parameters:
            return PARAMETER
        if self._batches.holds(tensor):
            return CONSTANT if is_mask(tensor) else BATCH
        if not bool(torch.isnan(tensor).any()):
            return CONSTANT  # a mask, or a limit, that was made before
        return OUTSIDE

    # -- facts -----------------------------------------------------------------------------------------------------

    def _facts(self, kind: _OperatorKind, ranges: list[Any], bad: list[Any], scalars: dict[str, Any]) -> dict[str, Any]:
        rows = rows_not_finite(bad[0])
        alike = bad[0].dim() > 0 and bad[0].shape[0] == self._batches.size
        return {
            "kind": self.origins[-1].kind,
            "step": self.step,
            "inputs": ranges,
            "outputs": [range_of(tensor) for tensor in bad[:MOST_RANGES]],
            "scalars": {
                name: json_number(value) if isinstance(value, float) else value for name, value in scalars.items()
            },
            "rows": rows,
            "samples": self._batches.samples(rows) if alike else [],
            **self._where(kind),
        }

    def _where(self, kind: _OperatorKind | None) -> dict[str, Any]:
        """Returns the operator and its place; in a backward also the matching operator of the forward."""
        place = place_of(sys._getframe(1))
        node = _current_node() if _current_node is not None else None
        found: dict[str, Any] = {
            "operator": kind.name if kind is not None else "",
            "phase": self._phase(place, node),
            "site": line_of(place.site),
            "caller": line_of(place.caller),
            "module": self._names.of(place.module),
            "node": node.name() if node is not None else "",
        }
        known = self._forward.get(node._sequence_nr()) if node is not None else None
        if known is not None and found["phase"] == "backward":
            forward, operator = known
            found["forward_site"], found["forward_caller"] = line_of(forward.site), line_of(forward.caller)
            found["forward_operator"] = operator
            found["module"] = self._names.of(forward.module)
        return found

    def _phase(self, place: CallSite, node: Any) -> str:
        if place.backward or (node is not None and not torch.is_grad_enabled()):
            return "backward"  # with gradients on, a checkpoint computes its forward again
        if self.updating and not torch.is_grad_enabled():
            return "optimizer"  # with gradients on, it calls the job's closure
        if self._batches.loading:
            return "input"
        return "forward"


# -- arguments ---------------------------------------------------------------------------------------------------------


def _written(kind: _OperatorKind, args: Any) -> Iterator[Any]:
    for position in kind.mutated:
        if position < len(args):
            yield from (tensor for tensor in tensors_in(args[position]) if is_floating(tensor))


def _before(tensor: Any) -> _Before:
    finite = is_finite(tensor)
    return _Before(tensor, finite, range_of(tensor, brief=finite))


def _results(kind: _OperatorKind, args: Any, kwargs: Any, output: Any) -> Iterator[Any]:
    """Yields the operator's results: outputs, and arguments that it wrote to."""
    seen: list[Any] = []
    for tensor in (*tensors_in(output), *_written(kind, args), *tensors_in(kwargs.get("out"))):
        if is_floating(tensor) and not any(tensor is each for each in seen):
            seen.append(tensor)
            yield tensor


def _inputs(kind: _OperatorKind, args: Any, kwargs: Any, before: list[_Before]) -> Iterator[tuple[str, Any, bool]]:
    """Yields (name, tensor, whether it was finite) of floating inputs; overwritten ones in their state before."""
    for name, value in (*zip(kind.names, args, strict=False), *kwargs.items()):
        for tensor in tensors_in(value):
            if name != "out" and is_floating(tensor):
                known = _found(tensor, before)
                yield name, tensor, known.finite if known is not None else is_finite(tensor)


def _found(tensor: Any, before: list[_Before]) -> _Before | None:
    return next((each for each in before if each.tensor is tensor), None)


def _described(tensor: Any, name: str, before: list[_Before]) -> dict[str, Any]:
    known = _found(tensor, before)
    return {**known.described, "name": name} if known is not None else range_of(tensor, name)


def _has_nan(tensor: Any, before: list[_Before]) -> bool:
    known = _found(tensor, before)
    return bool(known.described.get("nan")) if known is not None else bool(torch.isnan(tensor).any())


def _scalars(kind: _OperatorKind, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    for name, value in (*zip(kind.names, args, strict=False), *kwargs.items()):
        if isinstance(value, bool | int | float | str) or value is None:
            yield name, value
