"""Instrumented run: from the step that the monitor named on, every operator is observed until the origin of a value
that is not finite is known; then the job ends.

Before that step the job is unchanged. From it on compiled code runs uncompiled, because only operators can be observed.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from steptime.probe.changes.variant import ProcessVariant
from steptime.probe.numerics.batches import Batches
from steptime.probe.numerics.job import GrowingNumerics, Role
from steptime.probe.numerics.monitor import gradient_norm
from steptime.probe.numerics.operators import FirstNonFinite, OperatorObserver
from steptime.probe.numerics.values import ModuleNames, is_finite, is_floating, storage_of
from steptime.probe.objects import local_values, modules_of
from steptime.probe.recorder import json_number

LOSS, GRADIENT, SKIPPED, READ = "loss", "gradient", "skipped", "read"
MOST_REPORTED = 12
"""Most origins of a loss or gradient that are written."""
MOST_PARAMETERS = 16
HISTORY = 16
"""Steps before the window whose gradient norm is read: the monitor has only some."""


class Instrument(Role):
    """Role of the instrumented run. plan: first_step and last_step of the window; `kind`: of the monitor's finding."""

    def __init__(self, plan: dict[str, Any], numerics: GrowingNumerics, ending: ProcessVariant) -> None:
        self._first, self._last = int(plan["first_step"]), int(plan["last_step"])
        self._scaled, self._left = plan.get("kind") == SKIPPED, plan.get("kind") == READ
        self._numerics, self._ending = numerics, ending
        self._names, self._batches = ModuleNames(), Batches()
        self._observer = OperatorObserver(self._batches, self._names, self.failed)
        self._entered = False
        self._found = False
        self._history: list[tuple[int, Any]] = []
        self._parameters: dict[int, tuple[str, weakref.ref[Any]]] = {}
        numerics.facts.update(origin=None, trigger=None, origins=[])

    def install(self) -> None:
        self._batches.install()
        if self._first <= 1:
            self._enter(1)

    def _enter(self, step: int) -> None:
        self._observer.next_step(step)
        if not self._entered:
            self._entered = True
            _uncompiled(self._numerics)
            self._observer.__enter__()  # below the job's modes, which are away while a role is called (`unseen`)
        self._observer.active = True
        self._learn_parameters()

    def _learn_parameters(self) -> None:
        living = ((name, reference()) for name, reference in self._parameters.values())
        self._observer.parameters = {storage_of(each): name for name, each in living if each is not None}

    # -- reports -------------------------------------------------------------------------------------------------------

    def top_module(self, module: torch.nn.Module) -> None:
        self._names.top_module(module)
        for part in modules_of(module):
            for name, each in part._parameters.items():
                if each is not None:
                    self._parameters[id(each)] = (f"{self._names.of(part)}.{name}", weakref.ref(each))
        self._learn_parameters()

    def losses(self, step: int, tensors: list[Any]) -> None:
        self._numerics.open()
        self._ending.boundary(0)
        self._decide(step, LOSS, [tensor.detach() for tensor in tensors])

    def update(self, step: int, optimizer: Any) -> None:
        if not isinstance(getattr(optimizer, "found_inf", None), torch.Tensor):
            self._gradients(step, optimizer)
        self._observer.updating = True

    def updated(self, step: int, optimizer: Any) -> None:
        self._observer.updating = False
        if step >= self._first - HISTORY:
            norm = gradient_norm([each.grad for group in optimizer.param_groups for each in group["params"]])
            if norm is not None:
                self._history.append((step, float(norm)))
                del self._history[: -4 * HISTORY]

    def scaled_update(self, step: int, optimizer: Any) -> None:
        if self._scaled and step == self._last:
            self._gradients(step, optimizer)

    def boundary(self, step: int) -> None:
        self._numerics.facts["steps"] = step
        self._ending.boundary(step)
        self._observer.read = self._observer.scalar = ()
        if step >= self._last:
            self._leave(step)
        elif step + 1 >= self._first:
            self._enter(step + 1)

    def finish(self) -> None:
        # The job may have read a loss that is not finite and have left because of it.
        carried = self._observer.read or (self._observer.scalar if self._left else ())
        if carried and not self._found:
            self._numerics.open()
            self._notify(self._observer.step, READ, None, "", carried)
        self._write()

    def failed(self, error: Exception) -> None:
        self._observer.active = False
        self._count()
        self._numerics.give_up("the look at operators was given up", error)

    def forked(self) -> None:
        self._observer.active = False
        self._numerics.forget()

    def _name_of(self, owner: Any) -> str:
        name, reference = self._parameters.get(id(owner), ("", None))
        return name if reference is not None and reference() is owner else ""

    # -- results -------------------------------------------------------------------------------------------------------

    def _gradients(self, step: int, optimizer: Any) -> None:
        owners = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        gradients = [local_values(each.grad.detach()) for each in owners]
        bad = [
            (self._name_of(owner), gradient)
            for owner, gradient in zip(owners, gradients, strict=True)
            if is_floating(gradient) and not is_finite(gradient)
        ]
        if bad and self._observer.active:
            self._numerics.facts["bad_gradients"] = [name for name, _ in bad[:MOST_PARAMETERS]]
            self._numerics.facts["gradients"] = {"not_finite": len(bad), "all": len(gradients)}
            self._decide(step, GRADIENT, [gradient for _, gradient in bad])

    def _decide(self, step: int, kind: str, tensors: list[Any]) -> None:
        if not self._observer.active or self._found:
            return
        bad = [tensor for tensor in tensors if is_floating(tensor) and not is_finite(tensor)]
        if bad:
            value = float(bad[0].sum())
            name = next(iter(self._numerics.facts.get("bad_gradients", ())), "") if kind == GRADIENT else ""
            self._notify(step, kind, value, name, self._observer.origins_of(bad))
            self._leave(step)

    def _notify(self, step: int, kind: str, value: float | None, name: str, carried: tuple[int, ...]) -> None:
        self._found = True
        origins = [self._observer.origins[each] for each in carried]
        facts = self._numerics.facts
        facts["trigger"] = {"kind": kind, "step": step, "value": json_number(value), "name": name}
        origin = _origin(origins)
        facts["origin"] = origin.facts if origin is not None else None
        facts["origins"] = [found.facts for found in origins[:MOST_REPORTED]]
        facts["batch"] = self._batches.describe()

    def _leave(self, step: int) -> None:
        self._observer.active = False
        self._write()
        self._ending.end(step)

    def _write(self) -> None:
        self._count()
        self._numerics.write()

    def _count(self) -> None:
        self._numerics.facts["operators"] = self._observer.looked_at
        self._numerics.facts["history"] = [[step, None, json_number(norm)] for step, norm in self._history]


def _origin(origins: list[FirstNonFinite]) -> FirstNonFinite | None:
    """Returns the earliest origin that the user did not write, else the earliest constant."""
    return min(origins, key=lambda origin: (origin.deliberate, origin.number), default=None)


def _uncompiled(numerics: GrowingNumerics) -> None:
    """Makes compiled functions run uncompiled from now on."""
    if "torch._dynamo" not in sys.modules:
        return
    if not hasattr(torch.compiler, "set_stance"):  # torch < 2.6
        numerics.note("this torch cannot leave compiled code for a step: operators inside of it were not seen")
        return
    torch.compiler.set_stance("force_eager")
