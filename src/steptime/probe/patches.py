"""Timers of the probe in torch, and the interface of the session for them.

The user's program must not notice them. Functions stay the same objects and get lines of steptime's (`inlay`). Tables
hold the observers of module calls (`calls`); backward passes are seen at the engine's entry (`backwards`), torch's own
ranges where torch opens them (`ranges`).
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
from steptime.probe.inputs import InputCheck, RowsWithout
from steptime.probe.objects import being_traced, modules_of, parameters_of
from steptime.probe.ours import pass_on
from steptime.probe.weights import Weights

now = time.perf_counter_ns


class FastPath:
    """State of the fast path, on which the timers only append records. A call of the session would cost most of a
    microsecond per step, because its code is out of the cache."""

    __slots__ = ("records", "thread", "threads", "together", "trainer", "until", "weights")

    def __init__(self, records: list[int], threads: dict[int, int]) -> None:
        self.until = 0
        """End of the fast path, ns: intervals that end earlier are only recorded."""
        self.records = records
        """Records of the journal (see journal.Journal); each adds three integers in one step."""
        self.threads = threads
        """Small number of each thread in this process, by the system's identifier."""
        self.trainer = 0
        """System's identifier of the training thread."""
        self.thread = 0
        """Small number of the training thread, shifted to its place in a record's head."""
        self.weights = Weights()
        """Parameters, looked at while no optimizer has stepped."""
        self.together = False
        """True if items and collate of this process's batches are not timed separately (see loader.distinguish)."""

    def follow(self, trainer: int) -> None:
        self.trainer, self.thread = trainer, self.threads[trainer] << 16

    def keep(self, head: int, start: int, end: int) -> None:
        """Appends a record of the current thread to the journal. head: head of the record, without the thread."""
        self.records += head | self.threads[get_ident()] << 16, start, end


class Listener(Protocol):
    """Callbacks from the timers to the session. Times: ns of the monotonic clock. The timers pass its exceptions to
    `failed`."""

    fast_path: FastPath
    """State of the fast path."""

    def range_starts(self, kind: int, owner: Any, start: int) -> int:
        """Called when a loader's next or an optimizer's step starts; `owner`: iterator or optimizer. Returns the
        owner's number."""

    def range_ends(self, kind: int, number: int, start: int, end: int, failed: bool) -> None:
        """Called when the range has ended, outside of torch's own record. failed: True if the call raised an error."""

    def only(self, kind: int, owner: Any) -> bool:
        """True if no other owner can open a range of this name, until `RangePatch.forget` is called."""

    def failed(self, error: Exception) -> None:
        """Called when our code has raised: ends the instrumentation. Raises nothing itself."""

    def backward_starts(self, tensors: Any, start: int) -> None:
        """Called when a backward pass starts on these tensors."""

    def backward_ends(self, start: int, end: int, flags: int) -> None:
        """Called when a backward pass has ended."""

    def forward_ends(self, top_module: int, start: int, end: int, flags: int) -> None:
        """Called when a top module's call has ended."""

    def saved(self, start: int, end: int) -> None:
        """Called when torch.save has written a file."""


class Follower:
    """Callbacks at each step's end; a plain run has no follower. See `changes.trial.Trial`,
    `catching.SlowStepObserver`, `step_metrics.StepMetrics`."""

    every = 0
    """Nonzero if the follower counts steps, so that each boundary must be reported."""

    def boundary(self, steps: int) -> None:
        """Called when a step has ended; `steps`: number of steps so far."""

    def finish(self) -> None:
        """Called at the end of the process: the last chance to write."""


def reported(listener: Listener, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
        listener.failed(error)
        pass_on(error)
        return None


ANOMALY, DETERMINISTIC, PROFILER = int(Flag.ANOMALY), int(Flag.DETERMINISTIC), int(Flag.PROFILER)
GRADIENT, TRAINING, PARTIAL = int(Flag.GRADIENT), int(Flag.TRAINING), int(Flag.PARTIAL)
UNCHANGED = int(Flag.UNCHANGED)
SCALER_STEP, FORWARD, BACKWARD = int(Kind.SCALER_STEP), int(Kind.FORWARD), int(Kind.BACKWARD)
gradients = torch.is_grad_enabled
CALLS_WITHOUT_BACKWARD = 4
"""Calls of the first module without a backward that make the job an inference job, until a backward comes."""


def _backward_flags() -> int:
    # Plain integers: arithmetic on enum.IntFlag costs a microsecond each.
    flags = ANOMALY if torch.is_anomaly_enabled() else 0
    if torch.are_deterministic_algorithms_enabled():
        flags |= DETERMINISTIC
    if torch.autograd._profiler_enabled():
        flags |= PROFILER
    return flags


def _tracing() -> bool:
    """True while a graph is being made: the backward of a traced operator is not the job's."""
    context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)
    return context is not None and context.try_get() is not None


class BackwardTimer(BackwardObserver):
    """Timer of torch.autograd.backward and of torch.autograd.grad ("partial")."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._flags = 0
        """Flags of the latest full report, read a few times per second only: a job rarely changes these switches."""

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        if partial and _tracing():
            return tensors, None
        start, flags = now(), PARTIAL
        try:
            if start >= self._listener.fast_path.until:
                self._listener.backward_starts(tensors, start)
                self._flags = self._flags if partial else _backward_flags()
            flags = PARTIAL if partial else self._flags
            flags |= UNCHANGED * self._listener.fast_path.weights.unchanged()
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)
            pass_on(error)
        return tensors, (start, flags)

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
    """Context manager around a call; passes the token `begun` to `ends`."""

    __slots__ = ("_begun", "_ends")

    def __init__(self, ends: Callable[[Any], None], begun: Any) -> None:
        self._ends, self._begun = ends, begun

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        self._ends(self._begun)


def save_timers(listener: Listener) -> list[Inlay]:
    """Returns timers of checkpoint writing, in two functions below torch.save, because pickle looks up torch.save."""

    def ends(start: int) -> None:
        reported(listener, listener.saved, start, now())

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
    """Returns a timer of GradScaler.step(optimizer), which skips the optimizer's own step if gradients overflowed."""

    def ends(begun: tuple[int, int]) -> None:
        number, start = begun
        reported(listener, listener.range_ends, SCALER_STEP, number, start, now(), False)

    def opened(optimizer: Any) -> _Interval:
        start = now()
        return _Interval(ends, (reported(listener, listener.range_starts, SCALER_STEP, optimizer, start) or 0, start))

    return Inlay(torch.amp.GradScaler.step, OPENED_WITH_OPTIMIZER, opened=opened)


class TopModuleTimer(CallObserver):
    """Timer of one top module's calls, which it holds weakly: a model that the user deletes is freed at once."""

    def __init__(self, listener: Listener, module: torch.nn.Module, identity: int) -> None:
        self._module = weakref.ref(module)
        self.identity, self._listener = identity, listener
        self._head = FORWARD | identity << 32
        self.check: InputCheck | None = None
        self.check_without: RowsWithout | None = None

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
        flags = GRADIENT << 8 if gradients() else 0
        if module.training:
            flags += TRAINING << 8
        start = now()
        if start >= self._listener.fast_path.until:
            check = self.check if flags & GRADIENT << 8 else self.check_without
            if check is not None and start >= check.due:
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
    """Detector of jobs that only infer. It calls `inferring` with the first module with parameters at its fourth call,
    and is removed at the first backward."""

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
    """Finder of models whose optimizers come after the first steps (folds, sweeps, layers trained one by one). For
    BOUNDARIES step boundaries, it calls `found` for each called module with parameters that is in no known model."""

    BOUNDARIES, MOST_MODELS = 3, 1000
    """Boundaries to search for, and most living models that are timed: a job with more must not grow our tables."""

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
        """Starts the search for modules outside of `top_modules`. Without any, discovery is still to come."""
        if not 0 < len(top_modules) < self.MOST_MODELS:
            return
        for top_module in top_modules:
            if (module := top_module.module) is not None:
                self._know(module)
        self._left = self.BOUNDARIES
        calls.observe_all(self)

    def boundary(self) -> None:
        """Called when a step has ended."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.remove()

    def remove(self) -> None:
        self._known.clear()
        calls.unobserve_all(self)
