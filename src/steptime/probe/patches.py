"""Timers of the probe in torch, and the session as they see it.

The user's program must not notice: functions stay the objects that they are, and get lines of ours (`inlay`); calls of
modules are seen in tables of ours (`calls`), backward passes where torch enters its engine (`backwards`), ranges that
torch opens itself where it opens them (`ranges`).
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Protocol

import torch

from steptime.journal import Flag, Kind
from steptime.probe import calls
from steptime.probe.backwards import BackwardObserver
from steptime.probe.calls import CallObserver
from steptime.probe.inlay import Inlay
from steptime.probe.inputs import InputCheck
from steptime.probe.objects import being_traced, modules_of, parameters_of
from steptime.probe.ours import pass_on

now = time.perf_counter_ns


class FastPath:
    """What the patches go by while nobody waits for a step's boundary: they only keep records then, as a call more
    costs a step of the job most of a microsecond out of a cold cache."""

    __slots__ = ("records", "thread", "threads", "together", "trainer", "until")

    def __init__(self, records: list[int], threads: dict[int, int]) -> None:
        self.until = 0
        """ns: what ends before is only kept."""
        self.records = records
        """The journal's (see journal.Journal), to which three integers are added in one step."""
        self.threads = threads
        """This process's small number of each thread, by the system's identifier."""
        self.trainer = 0
        """The system's identifier of the training thread."""
        self.thread = 0
        """Its number, in its place in the head of a record."""
        self.together = False
        """True if items and collate of a batch that this process makes are not told apart (see loader.distinguish)."""

    def follow(self, trainer: int) -> None:
        self.trainer, self.thread = trainer, self.threads[trainer] << 16

    def keep(self, head: int, start: int, end: int) -> None:
        """Keeps a record of this thread, whichever it is. `head`: without the thread."""
        self.records += head | self.threads[get_ident()] << 16, start, end


class Listener(Protocol):
    """Callbacks from the patches to the session. Times: ns of the monotonic clock. Its exceptions are handed to
    `failed`."""

    fast_path: FastPath
    """What the patches go by while nobody waits for a boundary."""

    def range_starts(self, kind: int, owner: Any, start: int) -> int:
        """A loader's next or an optimizer's step starts; `owner`: iterator or optimizer. Returns its number."""

    def range_ends(self, kind: int, number: int, start: int, end: int, failed: bool) -> None:
        """The range has ended, outside of torch's own record."""

    def only(self, kind: int, owner: Any) -> bool:
        """True if nobody else can open a range of this name, until `RangePatch.forget` is called."""

    def failed(self, error: Exception) -> None:
        """Something of ours has raised: the watch ends. Raises nothing itself."""

    def backward_starts(self, start: int) -> None:
        """A backward pass starts."""

    def backward_ends(self, start: int, end: int, flags: int) -> None:
        """A backward pass has ended."""

    def forward_ends(self, top_module: int, start: int, end: int, flags: int) -> None:
        """A root module's call has ended."""

    def interval(self, kind: int, identity: int, start: int, end: int) -> None:
        """Any other interval has ended."""


class Follower:
    """Told of every step's end; of a plain run nobody is. See `changes.trial.Trial`, `catching.SlowStepObserver`,
    `step_metrics.StepMetrics`."""

    every = 0
    """True if each boundary must be reported, as steps are counted."""

    def boundary(self, steps: int) -> None:
        """A step has ended; `steps`: how many there were."""

    def finish(self) -> None:
        """The process ends: the last chance to write."""


def reported(listener: Listener, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
        listener.failed(error)
        pass_on(error)
        return None


ANOMALY, DETERMINISTIC, PROFILER = int(Flag.ANOMALY), int(Flag.DETERMINISTIC), int(Flag.PROFILER)
GRADIENT, TRAINING, PARTIAL = int(Flag.GRADIENT), int(Flag.TRAINING), int(Flag.PARTIAL)
SCALER_STEP, FORWARD, BACKWARD = int(Kind.SCALER_STEP), int(Kind.FORWARD), int(Kind.BACKWARD)
CHECKPOINT = int(Kind.CHECKPOINT)
gradients = torch.is_grad_enabled
CALLS_WITHOUT_BACKWARD = 4
"""So many calls of the first module without a backward make the job an inference job, until a backward comes."""


def _backward_flags() -> int:
    # Plain integers: arithmetic on enum.IntFlag costs a microsecond each.
    flags = ANOMALY if torch.is_anomaly_enabled() else 0
    if torch.are_deterministic_algorithms_enabled():
        flags |= DETERMINISTIC
    if torch.autograd._profiler_enabled():
        flags |= PROFILER
    return flags


def _tracing() -> bool:
    """True if a graph is being made: the backward of an operator that is traced is none of the job's."""
    context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)
    return context is not None and context.try_get() is not None


class BackwardTimer(BackwardObserver):
    """Times every way into the autograd engine: torch.autograd.backward, and torch.autograd.grad ("partial")."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._flags = 0
        """They are read while somebody waits for a boundary, several times a second: switches of a job stay as they
        are."""

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        if partial and _tracing():
            return tensors, None
        start = now()
        if start >= self._listener.fast_path.until:
            try:
                self._listener.backward_starts(start)
                self._flags = self._flags if partial else _backward_flags()
            except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
                self._listener.failed(error)
                pass_on(error)
        return tensors, (start, PARTIAL if partial else self._flags)

    def ends(self, begun: tuple[int, int]) -> None:
        end, fast_path, (start, flags) = now(), self._listener.fast_path, begun
        try:
            if end >= fast_path.until:
                self._listener.backward_ends(start, end, flags)
            elif get_ident() == fast_path.trainer:
                fast_path.records += BACKWARD + (flags << 8) + fast_path.thread, start, end
            else:
                fast_path.keep(BACKWARD | flags << 8, start, end)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)
            pass_on(error)


class _Interval:
    """A call of a function that is under way. ends: told of its start."""

    __slots__ = ("_begun", "_ends")

    def __init__(self, ends: Callable[[Any], None], begun: Any) -> None:
        self._ends, self._begun = ends, begun

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        self._ends(self._begun)


def save_timers(listener: Listener) -> list[Inlay]:
    """Time what writes a checkpoint: the two functions below torch.save, which itself is looked up by pickle."""

    def ends(start: int) -> None:
        reported(listener, listener.interval, CHECKPOINT, 0, start, now())

    def opened() -> _Interval:
        return _Interval(ends, now())

    serialization = torch.serialization
    text = 'with "opened"():\n    BODY'
    return [Inlay(function, text, opened=opened) for function in (serialization._save, serialization._legacy_save)]


OPENED_WITH_OPTIMIZER = """
if not torch.compiler.is_dynamo_compiling():
    with "opened"(optimizer):
        BODY
else:
    BODY
"""
"""Lines for GradScaler.step."""


def scaler_timer(listener: Listener) -> Inlay:
    """Times GradScaler.step(optimizer), which leaves the optimizer's own step out when gradients overflowed."""

    def ends(begun: tuple[int, int]) -> None:
        number, start = begun
        reported(listener, listener.range_ends, SCALER_STEP, number, start, now(), False)

    def opened(optimizer: Any) -> _Interval:
        start = now()
        return _Interval(ends, (reported(listener, listener.range_starts, SCALER_STEP, optimizer, start) or 0, start))

    return Inlay(torch.amp.GradScaler.step, OPENED_WITH_OPTIMIZER, opened=opened)


class TopModuleTimer(CallObserver):
    """Times the calls of one root module, which is held weakly: a model that the user deletes must be freed at once, as
    without us."""

    def __init__(self, listener: Listener, module: torch.nn.Module, identity: int) -> None:
        self._module = weakref.ref(module)
        self.identity, self._listener = identity, listener
        self._head = FORWARD | identity << 32
        self.check: InputCheck | None = None

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
        flags = GRADIENT << 8 if gradients() else 0
        if module.training:
            flags += TRAINING << 8
        start = now()
        if start >= self._listener.fast_path.until:
            check = self.check
            if check is not None and start >= check.due and flags & GRADIENT << 8:
                reported(self._listener, check.look, start, args, kwargs)
        return self._head + flags, start

    def ends(self, begun: tuple[int, int]) -> None:
        end, fast_path, (head, start) = now(), self._listener.fast_path, begun
        try:
            if end >= fast_path.until:
                self._listener.forward_ends(self.identity, start, end, head >> 8 & 255)
            elif get_ident() == fast_path.trainer:
                fast_path.records += head + fast_path.thread, start, end
            else:
                fast_path.keep(head, start, end)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)
            pass_on(error)

    def install(self) -> None:
        if (module := self._module()) is not None:
            calls.observe(module, self)

    def remove(self) -> None:
        if (module := self._module()) is not None:
            calls.unobserve(module, self)

    @property
    def module(self) -> torch.nn.Module | None:
        return self._module()

    @property
    def alive(self) -> bool:
        """False once the module is gone, or while it is not timed."""
        module = self._module()
        return module is not None and calls.is_observed(module, self)


class InferenceObserver(CallObserver):
    """Sees module calls before the first backward, to find jobs that only infer: `inferring` is told the first module
    with parameters when it is called for the fourth time. It leaves at the first backward."""

    def __init__(self, inferring: Callable[[torch.nn.Module], None]) -> None:
        self._inferring = inferring
        self._first: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if self._first is None and next(parameters_of(module), None) is not None:
                self._first = weakref.ref(module)
            if self._first is not None and self._first() is module:
                self._calls += 1
                # A dataset's own model in a loader's worker is no job of its own.
                if self._calls == CALLS_WITHOUT_BACKWARD and torch.utils.data.get_worker_info() is None:
                    self._inferring(module)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: a job that only infers goes unseen
            self.remove()
            pass_on(error)

    def install(self) -> None:
        calls.observe_all(self)

    def remove(self) -> None:
        calls.unobserve_all(self)


class NewModelObserver(CallObserver):
    """Finds the models of optimizers that come after the first steps (folds, sweeps, layers trained one by one):
    `found` is told of each module with parameters that lies in no known one when it is called, for BOUNDARIES
    boundaries of steps."""

    BOUNDARIES, MOST_MODELS = 3, 1000
    """Where a job keeps more models alive at once, the others are not timed: it must not grow our tables."""

    def __init__(self, found: Callable[[torch.nn.Module], None], fast_path: FastPath) -> None:
        self._found, self._fast_path = found, fast_path
        self._known: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._left = 0

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            # In a trace, the sizes of its parameters that we ask for would be operators of the user's graph.
            if gradients() and get_ident() == self._fast_path.trainer and not being_traced():
                self._called(module)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the model stays untimed, the job goes on
            self.remove()
            pass_on(error)

    def _called(self, module: torch.nn.Module) -> None:
        known = self._known.get(id(module))
        if known is None or known() is not module:
            self._know(module)
            if next(parameters_of(module), None) is not None:
                self._found(module)

    def _know(self, top_module: torch.nn.Module) -> None:
        self._known |= {id(module): weakref.ref(module) for module in modules_of(top_module)}

    def install(self, top_modules: Sequence[TopModuleTimer]) -> None:
        """Looks for modules that lie in none of these. Before there are any, discovery is still to come."""
        if not 0 < len(top_modules) < self.MOST_MODELS:
            return
        for top_module in top_modules:
            if (module := top_module.module) is not None:
                self._know(module)
        self._left = self.BOUNDARIES
        calls.observe_all(self)

    def boundary(self) -> None:
        """A step has ended."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.remove()

    def remove(self) -> None:
        self._known.clear()
        calls.unobserve_all(self)
