"""The few places where the probe listens to torch, and how it leaves them.

One law: the user's program must not notice. Ranges that torch already opens (loader, optimiser) are read by a patch
that
leaves no frame on the stack; the two functions that must be wrapped (backward, a root's call) take their own
frame out of every traceback.
"""

from __future__ import annotations

import functools
import sys
import time
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from steptime.capture.probe.parameters import parameters_of
from steptime.journal import Flag, Kind

now = time.perf_counter_ns

LOADER_RANGE = "enumerate(DataLoader)#"
STEP_RANGE = "Optimizer.step#"
ZERO_RANGE = "Optimizer.zero_grad#"
RANGES = (
    (LOADER_RANGE, int(Kind.LOADER_NEXT)),
    (STEP_RANGE, int(Kind.OPTIMIZER_STEP)),
    (ZERO_RANGE, int(Kind.ZERO_GRAD)),
)
ANOMALY, DETERMINISTIC, PROFILER = int(Flag.ANOMALY), int(Flag.DETERMINISTIC), int(Flag.PROFILER)
GRADIENT, TRAINING, PARTIAL = int(Flag.GRADIENT), int(Flag.TRAINING), int(Flag.PARTIAL)
SCALER_STEP = int(Kind.SCALER_STEP)
CALLS_WITHOUT_BACKWARD = 4
"""So many calls of the first module without a backward make the job an inference job, until a backward comes."""
ZERO_GRAD, LOADER_NEXT = int(Kind.ZERO_GRAD), int(Kind.LOADER_NEXT)
FORWARD, BACKWARD, EXHAUSTED = int(Kind.FORWARD), int(Kind.BACKWARD), int(Flag.EXHAUSTED)
READ_EACH, READ_EVERY = 64, 16
"""The flags of the first backwards are all read, of later ones every sixteenth: switches of a job stay as they are."""
KNOWN_NAMES = 4096
"""Names of ranges remembered; a job that makes up new names for ever must not grow our table."""


class Listener(Protocol):
    """What the patches tell the session. Times: ns of the monotonic clock. What raises in it is handed to `failed`."""

    marks: Any
    """None where no device is in use: then `forward_begins` is not called."""
    quiet_until: int
    """ns: what ends before is only recorded. Nobody waits for a step's border then, and a call costs a step of the job
    most of a microsecond out of a cold cache."""

    def range_begins(self, kind: int, owner: Any, begin: int) -> int:
        """A loader's next or an optimiser's step begins; `owner`: iterator or optimiser. Returns its number."""

    def range_ends(self, kind: int, number: int, begin: int, end: int, failed: bool) -> None:
        """The range has ended, outside of torch's own record."""

    def record(self, kind: int, flags: int, number: int, begin: int, end: int, /) -> None:
        """Writes an interval and does nothing else."""

    def failed(self, error: Exception) -> None:
        """Something of ours has raised: the watch ends. Raises nothing itself."""

    def backward_begins(self, begin: int) -> None:
        """A backward pass begins."""

    def backward_ends(self, begin: int, end: int, flags: int) -> None:
        """A backward pass has ended."""

    def forward_begins(self, begin: int) -> None:
        """A root module's call begins."""

    def forward_ends(self, root: int, begin: int, end: int, flags: int) -> None:
        """A root module's call has ended."""

    def interval(self, kind: int, identity: int, begin: int, end: int) -> None:
        """Any other interval has ended."""


def _told(listener: Listener, method: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a method of the listener where a few more hundred nanoseconds do not matter."""
    try:
        return method(*arguments)
    except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
        listener.failed(error)
        return None


class Patch(Protocol):
    """Something that can be put in place and taken away again."""

    def install(self) -> None:
        """Puts it in place."""

    def remove(self) -> None:
        """Restores what was there."""


def _kind_of(name: str, known: dict[str, int]) -> int:
    kind = next((kind for prefix, kind in RANGES if name.startswith(prefix)), 0)
    if len(known) < KNOWN_NAMES:
        known[name] = kind
    return kind


class RangePatch:
    """Reads the ranges that DataLoader and Optimizer open through torch.autograd.profiler.record_function.

    They are entered whether a profiler runs or not (torch 2.4 to 2.13), so this costs no frame and no hook. Every call
    here is paid for by each step of the job, out of a cold cache: hence so few of them.
    """

    def __init__(self, listener: Listener) -> None:
        self._target = torch.autograd.profiler.record_function
        self._enter = self._target.__enter__
        self._exit = self._target.__exit__
        self._listener = listener

    def install(self) -> None:
        """Replaces the class's two methods. `_steptime` of an instance: (kind, number, begin) of a range of ours."""
        self._target._steptime = None
        self._target.__enter__ = self._make_enter()
        self._target.__exit__ = self._make_exit()

    def remove(self) -> None:
        """Puts the originals back."""
        self._target.__enter__ = self._enter
        self._target.__exit__ = self._exit
        if "_steptime" in vars(self._target):
            del self._target._steptime

    def _make_enter(self) -> Callable[..., Any]:
        original, listener, known = self._enter, self._listener, dict[str, int]()
        frame_of = sys._getframe

        @functools.wraps(original)
        def __enter__(self: Any) -> Any:
            name = self.name
            kind = known.get(name)
            if kind is None:
                kind = _kind_of(name, known)
            if kind:
                begin = now()
                try:
                    owner = None if kind == ZERO_GRAD else frame_of(1).f_locals["self"]
                    number = 0 if owner is None else listener.range_begins(kind, owner, begin)
                    self._steptime = (kind, number, begin)
                except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
                    listener.failed(error)
            return original(self)

        return __enter__

    def _make_exit(self) -> Callable[..., Any]:
        original, listener = self._exit, self._listener

        @functools.wraps(original)
        def __exit__(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
            result = original(self, exc_type, exc_value, traceback)
            opened = getattr(self, "_steptime", None)
            if opened is not None:
                kind, number, begin = opened
                end = now()
                try:
                    if end < listener.quiet_until and kind != LOADER_NEXT:
                        listener.record(kind, EXHAUSTED if exc_type is not None else 0, number, begin, end)
                    else:
                        listener.range_ends(kind, number, begin, end, exc_type is not None)
                except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
                    listener.failed(error)
            return result

        return __exit__


def _backward_flags() -> int:
    # Plain integers: arithmetic on enum.IntFlag costs a microsecond each.
    flags = ANOMALY if torch.is_anomaly_enabled() else 0
    if torch.are_deterministic_algorithms_enabled():
        flags |= DETERMINISTIC
    if torch.autograd._profiler_enabled():
        flags |= PROFILER
    return flags


class FunctionPatch:
    """Wraps a function of a module by name; `remove` puts the original back unless somebody else has replaced it
    since."""

    def __init__(self, module: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._module, self._name = module, name
        self._original = getattr(module, name)
        self._wrapper = wrap(self._original)

    def install(self) -> None:
        """Puts the wrapper in place."""
        setattr(self._module, self._name, self._wrapper)

    def remove(self) -> None:
        """Puts the original back."""
        if getattr(self._module, self._name) is self._wrapper:
            setattr(self._module, self._name, self._original)


def backward_wrapper(listener: Listener, partial: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps torch.autograd.backward, or torch.autograd.grad with `partial`."""

    calls = flags = 0

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = now()
            nonlocal calls, flags
            calls += 1
            try:
                if begin >= listener.quiet_until:
                    listener.backward_begins(begin)
                if calls < READ_EACH or not calls % READ_EVERY:
                    flags = PARTIAL if partial else _backward_flags()
            except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
                listener.failed(error)
            try:
                return inner(*args, **kwargs)
            except BaseException as error:
                # A bare raise adds no frame, so this takes ours out of the user's traceback (Python >= 3.11).
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                end = now()
                try:
                    if end < listener.quiet_until:
                        listener.record(BACKWARD, flags, 0, begin, end)
                    else:
                        listener.backward_ends(begin, end, flags)
                except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
                    listener.failed(error)

        # What torch.compiler.disable sets, without importing torch._dynamo.
        timed._torchdynamo_disable = True  # type: ignore[attr-defined]
        return timed

    return wrap


def interval_wrapper(listener: Listener, kind: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps a function whose calls become plain intervals (torch.save)."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = now()
            try:
                return inner(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                _told(listener, listener.interval, kind, 0, begin, now())

        timed._torchdynamo_disable = True  # type: ignore[attr-defined]
        return timed

    return wrap


def scaler_wrapper(listener: Listener) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps GradScaler.step(optimizer), which leaves the optimiser's own step out when gradients overflowed."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            begin = now()
            number = _told(listener, listener.range_begins, SCALER_STEP, optimizer, begin) or 0
            try:
                return inner(self, optimizer, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                _told(listener, listener.range_ends, SCALER_STEP, number, begin, now(), False)

        return step

    return wrap


class RootPatch:
    """Times one root module through its instance slot `_compiled_call_impl`.

    nn.Module drops the slot when it is pickled or copied, Dynamo passes it by inside a compiled region, and it lies
    outside of hooks and of a compiled module; other instances of the class are untouched (torch 2.4 to 2.13).
    """

    def __init__(self, listener: Listener, module: torch.nn.Module, identity: int) -> None:
        # Weak throughout: a model that the user deletes must be freed at once, as without us.
        self._module = weakref.ref(module)
        self.identity, self._listener = identity, listener
        self._before = module.__dict__.get("_compiled_call_impl")
        self._wrapper = self._wrap(self._before, type(module)._call_impl)

    def _wrap(self, compiled: Callable[..., Any] | None, call: Callable[..., Any]) -> Callable[..., Any]:
        listener, identity, reference = self._listener, self.identity, self._module
        gradients = torch.is_grad_enabled

        def timed_call(*args: Any, **kwargs: Any) -> Any:
            module = reference()
            flags = (GRADIENT if gradients() else 0) | (TRAINING if module is not None and module.training else 0)
            begin = now()
            if listener.marks is not None:
                _told(listener, listener.forward_begins, begin)
            try:
                return compiled(*args, **kwargs) if compiled else call(module, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                end = now()
                try:
                    if end < listener.quiet_until:
                        listener.record(FORWARD, flags, identity, begin, end)
                    else:
                        listener.forward_ends(identity, begin, end, flags)
                except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
                    listener.failed(error)

        return timed_call

    def install(self) -> None:
        """Puts the timed call into the instance's slot."""
        module = self._module()
        if module is not None:
            module.__dict__["_compiled_call_impl"] = self._wrapper

    def remove(self) -> None:
        """Restores the slot unless the user has compiled the module in the meantime."""
        module = self._module()
        if module is None or not self.alive:
            return
        if self._before is None:
            del module.__dict__["_compiled_call_impl"]
        else:
            module.__dict__["_compiled_call_impl"] = self._before

    @property
    def alive(self) -> bool:
        """False once the module is gone or somebody else has replaced the slot (module.compile(), for one)."""
        module = self._module()
        return module is not None and module.__dict__.get("_compiled_call_impl") is self._wrapper


class ModuleCallWatch:
    """Sees module calls before the first backward, to find jobs that only infer: `inferring` is told the first
    module with
    parameters when it is called for the fourth time.

    A descriptor in the place of nn.Module.__call__ is asked for the bound method at every call: no frame, and
    the method that it hands out is the original (Dynamo checks that). It leaves at the first backward.
    """

    def __init__(self, inferring: Callable[[torch.nn.Module], None]) -> None:
        self._original = torch.nn.Module.__dict__["__call__"]
        self._inferring = inferring
        self._first: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._original
        if self._first is None and next(parameters_of(instance), None) is not None:
            self._first = weakref.ref(instance)
        if self._first is not None and self._first() is instance:
            self._calls += 1
            # A dataset's own model in a loader's worker is no job of its own.
            if self._calls == CALLS_WITHOUT_BACKWARD and torch.utils.data.get_worker_info() is None:
                self._inferring(instance)
        return types.MethodType(self._original, instance)

    def install(self) -> None:
        """Puts the descriptor in place."""
        torch.nn.Module.__call__ = self

    def remove(self) -> None:
        """Restores the method."""
        if torch.nn.Module.__dict__["__call__"] is self:
            torch.nn.Module.__call__ = self._original
