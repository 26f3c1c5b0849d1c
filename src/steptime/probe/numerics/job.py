"""Events of the job for a role that checks its numbers: losses, updates, skipped steps, boundaries.

Steps are counted as everywhere in the probe (`steps.StepCounter`), so that a step has the same number in every run. No
error of ours reaches the user: `failed` gets the first one, and the job goes on unobserved.
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
from steptime.probe.backwards import BackwardObserver
from steptime.probe.changes.applier import TopModuleObserver, keep_unscaled, losses_of, unscaled
from steptime.probe.inlay import Inlay
from steptime.probe.messages import switched_off
from steptime.probe.objects import ConstructionObserver, ObjectNumbers, torch_optimizer, unseen
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.patches import OPENED_WITH_OPTIMIZER
from steptime.probe.recorder import finish_as_child, write_whole
from steptime.probe.steps import StepCounter

NAME = "numerics.json"


class GrowingNumerics:
    """`ProcessNumerics` under construction. The folder is made at the first sign of training."""

    def __init__(self, recording: str, mode: str) -> None:
        self.recording = recording
        self.folder = ""
        self.facts: dict[str, Any] = {"mode": mode, "steps": 0, "notes": []}

    def open(self) -> None:
        """Makes the folder. Raises OSError if the recording cannot be written."""
        if not self.folder:
            self.folder = identity.make_folder(self.recording, os.getpid())
            identity.write_process(self.folder, device="cpu", device_name="")
            self.facts["pid"], self.facts["rank"] = os.getpid(), identity.place().rank

    def write(self) -> None:
        """Writes the facts so far, if the process has trained. Raises OSError."""
        if self.folder:
            write_whole(os.path.join(self.folder, NAME), self.facts)

    def note(self, text: str) -> None:
        if text not in self.facts["notes"]:
            self.facts["notes"].append(text)

    def give_up(self, what: str, error: Exception) -> None:
        """Informs the user, and writes the facts so far if possible. Raises nothing, because the job calls it."""
        reason = f"{type(error).__name__}: {error}"
        switched_off(reason)
        self.note(f"{what}: {reason}")
        with suppressed(OSError, TypeError, ValueError):
            self.write()

    def forget(self) -> None:
        """Resets a forked child, which gets its own folder when it trains."""
        self.folder = ""
        self.facts = {"mode": self.facts["mode"], "steps": 0, "notes": []}


MOST_BACKWARDS = 64
"""Most backwards to wait for the first update; an optimizer inside a compiled step is never seen."""
TOP_MODULE_STEPS = 3
"""Steps in which top modules are searched."""


class Role:
    """Callbacks for the job's events. `step`: number of the current step, from 1."""

    def install(self) -> None:
        """Called before the user's program goes on."""

    def top_module(self, module: torch.nn.Module) -> None:
        """Called at the first call of a top module that is trained."""

    def losses(self, step: int, tensors: list[Any]) -> None:
        """Called when an outermost backward starts on these tensors, before any scaling."""

    def update(self, step: int, optimizer: Any) -> None:
        """Called when an optimizer's step starts, with its final gradients."""

    def updated(self, step: int, optimizer: Any) -> None:
        """Called when an optimizer's step has ended. Gradients are complete here even if a closure or a backward's hook
        made the update."""

    def scaled_update(self, step: int, optimizer: Any) -> None:
        """Called when GradScaler.step starts: gradients may still be scaled."""

    def skipped(self, step: int, optimizer: Any) -> None:
        """Called when GradScaler.step has skipped the update, because gradients overflowed."""

    def boundary(self, step: int) -> None:
        """Called when the step has ended. May not return."""

    def finish(self) -> None:
        """Called at the end of the process. An unfinished step counts, too: the job may have ended because of it."""

    def failed(self, error: Exception) -> None:
        """Called after an error of ours, as the last callback. Raises nothing."""

    def forked(self) -> None:
        """Called in a forked child: a loader's worker, or a trainer that starts at its own step 1."""


class _ScalerStep:
    """Context manager around a call of GradScaler.step."""

    __slots__ = ("_before", "_job", "_optimizer")

    def __init__(self, job: Job, optimizer: Any) -> None:
        self._job, self._optimizer = job, optimizer
        self._before = job.scaler_starts(optimizer)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            self._job.scaler_ends(self._optimizer, self._before)


class Job(BackwardObserver):
    """Observer of this process that calls a role's methods."""

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
        self._top_modules = TopModuleObserver(functools.partial(self._notify, role.top_module))
        self._constructions = ConstructionObserver(self._made)
        self._optimizers = False

    def install(self) -> None:
        self._top_modules.install()
        self._constructions.install()
        backwards.install()
        backwards.observe(self)
        keep_unscaled()
        Inlay(torch.amp.GradScaler.step, OPENED_WITH_OPTIMIZER, opened=functools.partial(_ScalerStep, self)).install()
        register_optimizer_step_pre_hook(self._update_starts)
        register_optimizer_step_post_hook(self._update_ends)

    def forked(self) -> None:
        """Resets the observer in a forked child, which may train by itself, from step 1."""
        self.step, self._thread, self._depth = 1, 0, 0
        self._pid = os.getpid()
        self._counter = StepCounter()
        self.role.forked()
        finish_as_child(self.finish)

    def finish(self) -> None:
        if os.getpid() == self._pid:
            self._notify(self.role.finish)

    def _notify(self, method: Callable[..., None], *arguments: Any) -> None:
        if not self._active:
            return
        try:
            with unseen():
                method(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
            self._active = False
            self.role.failed(error)
            pass_on(error)

    def _mine(self) -> bool:
        """True if this is the training thread."""
        return self._active and get_ident() == self._thread

    # -- what torch calls ------------------------------------------------------------------------------------------

    def _made(self, _: Any) -> None:
        self._optimizers = True

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        if partial or self._depth or not self._active:  # inside of a backward: checkpointing, or an engine's thread
            return tensors, None
        self._notify(self._backward_starts, tensors)
        self._depth += 1
        return tensors, True

    def ends(self, begun: Any) -> None:
        self._depth -= 1
        self._notify(self._backward_ends)

    def _backward_starts(self, tensors: Any) -> None:
        self._thread = self._thread or get_ident()
        if get_ident() != self._thread:
            return
        self._top_modules.in_backward = True
        self._counter.backward_starts()
        if losses := losses_of(tensors):
            before = [(loss, unscaled.of(loss)) for loss in losses]
            self.role.losses(self.step, [loss if known is None else known for loss, known in before])

    def _backward_ends(self) -> None:
        if self._mine():
            self._top_modules.in_backward = False
            ended = self._counter.backward_ends()
            # Before the first update every backward may look like a step (long accumulation); where there is an
            # optimizer, its update is waited for.
            waits = self._optimizers and self._counter.backwards < MOST_BACKWARDS
            if ended and (self._counter.updated or not waits):
                self._boundary()

    def scaler_starts(self, optimizer: Any) -> int | None:
        """Called when GradScaler.step starts. Returns the updates so far; None outside of the training thread."""
        if not self._mine():
            return None
        before = self._updates
        self._notify(self.role.scaled_update, self.step, optimizer)
        self._counter.update_starts(self._numbers.of(torch_optimizer(optimizer))[0])
        return before

    def scaler_ends(self, optimizer: Any, before: int) -> None:
        if self._updates == before:
            self._notify(self.role.skipped, self.step, torch_optimizer(optimizer))
        if self._counter.update_ends():
            self._notify(self._boundary)

    def _update_starts(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._active:
            return
        self._thread = self._thread or get_ident()
        if self._mine():
            self._updates += 1
            self._counter.update_starts(self._numbers.of(optimizer)[0])
            self._notify(self.role.update, self.step, optimizer)

    def _update_ends(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._mine():
            return
        self._notify(self.role.updated, self.step, optimizer)
        if self._counter.update_ends():
            self._notify(self._boundary)

    def _boundary(self) -> None:
        self.role.boundary(self.step)
        self.step += 1
        if self.step > TOP_MODULE_STEPS:
            self._top_modules.remove()
