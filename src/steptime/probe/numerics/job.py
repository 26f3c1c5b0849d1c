"""What happens in the job, told to a role that looks at its numbers: losses, updates, skipped steps, boundaries.

Steps are counted as everywhere in the probe (`steps.StepCounter`), so that a step has the same number in every run of
the job. Nothing of ours reaches the user: what fails is told to `failed`, once, and then the job runs unwatched.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from steptime.probe import backwards, identity
from steptime.probe.backwards import BackwardWatch
from steptime.probe.changes.applier import RootWatch, keep_unscaled, losses_of, unscaled
from steptime.probe.inlay import Inlay
from steptime.probe.messages import switched_off
from steptime.probe.objects import ConstructionWatch, ObjectNumbers, torch_optimizer
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.patches import OPENED_WITH_OPTIMIZER
from steptime.probe.recorder import finish_as_child, write_whole
from steptime.probe.steps import StepCounter

NAME = "numerics.json"


class GrowingNumerics:
    """`ProcessNumerics` while it grows. The folder is made at the first sign of training."""

    def __init__(self, recording: str, mode: str) -> None:
        self.recording = recording
        self.folder = ""
        self.facts: dict[str, Any] = {"mode": mode, "steps": 0, "notes": []}

    def open(self) -> None:
        """Raises OSError where the recording cannot be written."""
        if not self.folder:
            self.folder = identity.make_folder(self.recording, os.getpid())
            identity.write_process(self.folder, device="cpu", device_name="")
            self.facts["pid"], self.facts["rank"] = os.getpid(), identity.place().rank

    def write(self) -> None:
        """Writes what is known, if the process has trained. Raises OSError."""
        if self.folder:
            write_whole(os.path.join(self.folder, NAME), self.facts)

    def note(self, text: str) -> None:
        if text not in self.facts["notes"]:
            self.facts["notes"].append(text)

    def give_up(self, what: str, error: Exception) -> None:
        """Tells the user, and writes what is known as far as that can be done. Raises nothing: it is called from inside
        the job."""
        reason = f"{type(error).__name__}: {error}"
        switched_off(reason)
        self.note(f"{what}: {reason}")
        with suppressed(OSError, TypeError, ValueError):
            self.write()

    def forget(self) -> None:
        """In a forked child: it gets a folder of its own when it trains."""
        self.folder = ""
        self.facts = {"mode": self.facts["mode"], "steps": 0, "notes": []}


MOST_BACKWARDS = 64
"""Backwards that are waited for before the first update; an optimiser inside a compiled step is never seen."""
ROOT_STEPS = 3
"""Steps in which modules that are called from outside of all others are looked for."""


class Role:
    """Who is told what happens. `step`: the number, from 1, of the step that is under way."""

    def install(self) -> None:
        """Before the user's program goes on."""

    def root(self, module: torch.nn.Module) -> None:
        """A module that learns is called from outside of all others for the first time."""

    def losses(self, step: int, tensors: list[Any]) -> None:
        """An outermost backward begins on these, before any scaling."""

    def update(self, step: int, optimizer: Any) -> None:
        """An optimiser's step begins; its gradients are what it will use."""

    def updated(self, step: int, optimizer: Any) -> None:
        """It has ended: here gradients are whole also where a closure, or a backward's hook, has made the update."""

    def scaled_update(self, step: int, optimizer: Any) -> None:
        """GradScaler.step begins: gradients may still be scaled."""

    def skipped(self, step: int, optimizer: Any) -> None:
        """GradScaler.step has left the update out, as gradients had overflowed."""

    def boundary(self, step: int) -> None:
        """The step has ended. May not return."""

    def finish(self) -> None:
        """The process ends. A step that began and never ended counts, too: the job may have left because of it."""

    def failed(self, error: Exception) -> None:
        """Something of ours has raised; nothing more will be told. Raises nothing."""

    def forked(self) -> None:
        """In a child: a loader's worker, or a trainer that begins at its own step 1."""


class _ScalerStep:
    """A call of GradScaler.step that is under way."""

    __slots__ = ("_before", "_job", "_optimizer")

    def __init__(self, job: Job, optimizer: Any) -> None:
        self._job, self._optimizer = job, optimizer
        self._before = job.scaler_begins(optimizer)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            self._job.scaler_ends(self._optimizer, self._before)


class Job(BackwardWatch):
    """Listens in this process and tells a role."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.step = 1
        self._active = True
        self._pid = os.getpid()
        self._thread = 0
        self._depth = 0
        self._updates = 0
        self._counter = StepCounter()
        self._numbers = ObjectNumbers()
        self._roots = RootWatch(functools.partial(self._tell, role.root))
        self._constructions = ConstructionWatch(self._made)
        self._optimizers = False

    def install(self) -> None:
        self._roots.install()
        self._constructions.install()
        backwards.install()
        backwards.watch(self)
        keep_unscaled()
        Inlay(torch.amp.GradScaler.step, OPENED_WITH_OPTIMIZER, opened=functools.partial(_ScalerStep, self)).install()
        register_optimizer_step_pre_hook(self._update_begins)
        register_optimizer_step_post_hook(self._update_ends)

    def forked(self) -> None:
        """In a child: it may train by itself, from step 1."""
        self.step, self._thread, self._depth = 1, 0, 0
        self._pid = os.getpid()
        self._counter = StepCounter()
        self.role.forked()
        finish_as_child(self.finish)

    def finish(self) -> None:
        if os.getpid() == self._pid:
            self._tell(self.role.finish)

    def _tell(self, method: Callable[..., None], *arguments: Any) -> None:
        if not self._active:
            return
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
            self._active = False
            self.role.failed(error)
            pass_on(error)

    def _mine(self) -> bool:
        """Whether this thread is the one that trains."""
        return self._active and get_ident() == self._thread

    # -- what torch calls ------------------------------------------------------------------------------------------

    def _made(self, _: Any) -> None:
        self._optimizers = True

    def begins(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        if partial or self._depth or not self._active:  # inside of a backward: checkpointing, or an engine's thread
            return tensors, None
        self._tell(self._backward_begins, tensors)
        self._depth += 1
        return tensors, True

    def ends(self, begun: Any) -> None:
        self._depth -= 1
        self._tell(self._backward_ends)

    def _backward_begins(self, tensors: Any) -> None:
        self._thread = self._thread or get_ident()
        if get_ident() != self._thread:
            return
        self._roots.in_backward = True
        self._counter.backward_begins()
        if losses := losses_of(tensors):
            before = [(loss, unscaled.of(loss)) for loss in losses]
            self.role.losses(self.step, [loss if known is None else known for loss, known in before])

    def _backward_ends(self) -> None:
        if self._mine():
            self._roots.in_backward = False
            ended = self._counter.backward_ends()
            # Before the first update every backward may look like a step (long accumulation); where there is an
            # optimiser, its update is waited for.
            waits = self._optimizers and self._counter.backwards < MOST_BACKWARDS
            if ended and (self._counter.updated or not waits):
                self._boundary()

    def scaler_begins(self, optimizer: Any) -> int | None:
        """GradScaler.step begins. Returns how many updates there were; None in another thread than the one that
        trains."""
        if not self._mine():
            return None
        before = self._updates
        self._tell(self.role.scaled_update, self.step, optimizer)
        self._counter.update_begins(self._numbers.of(torch_optimizer(optimizer))[0])
        return before

    def scaler_ends(self, optimizer: Any, before: int) -> None:
        if self._updates == before:
            self._tell(self.role.skipped, self.step, torch_optimizer(optimizer))
        if self._counter.update_ends():
            self._tell(self._boundary)

    def _update_begins(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._active:
            return
        self._thread = self._thread or get_ident()
        if self._mine():
            self._updates += 1
            self._counter.update_begins(self._numbers.of(optimizer)[0])
            self._tell(self.role.update, self.step, optimizer)

    def _update_ends(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._mine():
            return
        self._tell(self.role.updated, self.step, optimizer)
        if self._counter.update_ends():
            self._tell(self._boundary)

    def _boundary(self) -> None:
        self.role.boundary(self.step)
        self.step += 1
        if self.step > ROOT_STEPS:
            self._roots.remove()
