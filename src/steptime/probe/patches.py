"""The few functions that the probe wraps in torch, how it leaves them, and the session as they see it.

The user's program must not notice. What must be wrapped (backward, a root's call) takes its own frame out of every
traceback; ranges that torch opens itself are listened to without a frame (`ranges`).
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FunctionType
from typing import Any, Protocol

import torch

from steptime.journal import Flag, Kind
from steptime.probe.inputs import InputCheck
from steptime.probe.objects import modules_of, parameters_of

now = time.perf_counter_ns


class Quiet:
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
        """Whether items and collate of a batch that this process makes are not told apart (see loader.tell_apart)."""

    def follow(self, trainer: int) -> None:
        self.trainer, self.thread = trainer, self.threads[trainer] << 16

    def keep(self, head: int, begin: int, end: int) -> None:
        """Keeps a record of this thread, whichever it is. `head`: without the thread."""
        self.records += head | self.threads[get_ident()] << 16, begin, end


class Listener(Protocol):
    """What the patches tell the session. Times: ns of the monotonic clock. What raises in it is handed to `failed`."""

    quiet: Quiet
    """What the patches go by while nobody waits for a boundary."""

    def range_begins(self, kind: int, owner: Any, begin: int) -> int:
        """A loader's next or an optimiser's step begins; `owner`: iterator or optimiser. Returns its number."""

    def range_ends(self, kind: int, number: int, begin: int, end: int, failed: bool) -> None:
        """The range has ended, outside of torch's own record."""

    def only(self, kind: int, owner: Any) -> bool:
        """Whether nobody else can open a range of this name, until `RangePatch.forget` is called."""

    def failed(self, error: Exception) -> None:
        """Something of ours has raised: the watch ends. Raises nothing itself."""

    def backward_begins(self, begin: int) -> None:
        """A backward pass begins."""

    def backward_ends(self, begin: int, end: int, flags: int) -> None:
        """A backward pass has ended."""

    def forward_ends(self, root: int, begin: int, end: int, flags: int) -> None:
        """A root module's call has ended."""

    def interval(self, kind: int, identity: int, begin: int, end: int) -> None:
        """Any other interval has ended."""


class Follower:
    """Told of every step's end; of a plain run nobody is. See `changes.trial.Trial`, `catching.SlowStepWatch`,
    `step_metrics.StepMetrics`."""

    every = 0
    """Whether each boundary must be told of, as steps are counted."""

    def boundary(self, steps: int) -> None:
        """A step has ended; `steps`: how many there were."""

    def finish(self) -> None:
        """The process ends: the last chance to write."""


def told(listener: Listener, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
        listener.failed(error)
        return None


ANOMALY, DETERMINISTIC, PROFILER = int(Flag.ANOMALY), int(Flag.DETERMINISTIC), int(Flag.PROFILER)
GRADIENT, TRAINING, PARTIAL = int(Flag.GRADIENT), int(Flag.TRAINING), int(Flag.PARTIAL)
SCALER_STEP, FORWARD, BACKWARD = int(Kind.SCALER_STEP), int(Kind.FORWARD), int(Kind.BACKWARD)
gradients = torch.is_grad_enabled
SLOT, BEFORE = "_compiled_call_impl", "_steptime_before"
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
    """Whether a graph is being made: the backward of an operator that is traced is none of the job's."""
    context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)
    return context is not None and context.try_get() is not None


class FunctionPatch:
    """Wraps a function of a module by name; `remove` puts the original back unless somebody else has replaced it
    since."""

    def __init__(self, module: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._module, self._name = module, name
        self._original = getattr(module, name)
        self._wrapper = wrap(self._original)

    def install(self) -> None:
        setattr(self._module, self._name, self._wrapper)

    def remove(self) -> None:
        if getattr(self._module, self._name) is self._wrapper:
            setattr(self._module, self._name, self._original)


BACKWARD_PARAMETERS = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


def backward_wrapper(listener: Listener, partial: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps torch.autograd.backward, or torch.autograd.grad with `partial`."""
    passage = _Passage(listener, partial)

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        code = getattr(inner, "__code__", None)
        plain = code is not None and code.co_varnames[: code.co_argcount] == BACKWARD_PARAMETERS
        timed = passage.around_backward(inner) if plain and not partial else passage.around(inner)
        # What torch.compiler.disable sets, without importing torch._dynamo.
        timed._torchdynamo_disable = True  # type: ignore[attr-defined]
        return timed

    return wrap


class _Passage:
    """One of the two ways into the autograd engine."""

    def __init__(self, listener: Listener, partial: bool) -> None:
        self._listener, self._partial = listener, partial
        self.head = BACKWARD
        """Of a record, without the thread. Its flags are read while somebody waits for a boundary, several times a
        second: switches of a job stay as they are."""

    def around(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        quiet, begins, ends, partial = self._listener.quiet, self._begins, self._ends, self._partial

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if partial and _tracing():
                return inner(*args, **kwargs)
            begin = now()
            if begin >= quiet.until:
                begins(begin)
            try:
                return inner(*args, **kwargs)
            except BaseException as error:
                # A bare raise adds no frame, so this takes ours out of the user's traceback (Python >= 3.11).
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                ends(begin, now())

        return timed

    def around_backward(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The same for torch.autograd.backward with the parameters that it has in torch 2.4 to 2.13: to hand them on
        one by one and to keep the record at once spares each step of the job 2 us."""
        quiet, records, begins, ends = self._listener.quiet, self._listener.quiet.records, self._begins, self._ends
        own = self

        @functools.wraps(inner)
        def timed(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: Any = None,
            create_graph: Any = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> Any:
            nonlocal records
            begin = now()
            if begin >= quiet.until:
                begins(begin)
            try:
                return inner(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                end = now()
                if end < quiet.until and get_ident() == quiet.trainer:
                    records += own.head + quiet.thread, begin, end
                else:
                    ends(begin, end)

        return timed

    def _begins(self, begin: int) -> None:
        try:
            self._listener.backward_begins(begin)
            self.head = BACKWARD | (PARTIAL if self._partial else _backward_flags()) << 8
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)

    def _ends(self, begin: int, end: int) -> None:
        try:
            if end < self._listener.quiet.until:
                self._listener.quiet.keep(self.head, begin, end)
            else:
                self._listener.backward_ends(begin, end, self.head >> 8)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)


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
                told(listener, listener.interval, kind, 0, begin, now())

        timed._torchdynamo_disable = True  # type: ignore[attr-defined]
        return timed

    return wrap


def scaler_wrapper(listener: Listener) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps GradScaler.step(optimizer), which leaves the optimiser's own step out when gradients overflowed."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            begin = now()
            number = told(listener, listener.range_begins, SCALER_STEP, optimizer, begin) or 0
            try:
                return inner(self, optimizer, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                told(listener, listener.range_ends, SCALER_STEP, number, begin, now(), False)

        return step

    return wrap


class RootPatch:
    """Times one root module through its instance slot `_compiled_call_impl`.

    nn.Module drops the slot when it is pickled or copied, Dynamo passes it by inside a compiled region, and it lies
    outside of hooks and of a compiled module; other instances of the class are untouched (torch 2.4 to 2.13).

    Weak throughout: a model that the user deletes must be freed at once, as without us. What was in the slot before
    belongs to the module (it is its compiled call), so only the module's own slot holds it, as an attribute of ours.
    """

    def __init__(self, listener: Listener, module: torch.nn.Module, identity: int) -> None:
        self._module = weakref.ref(module)
        self._wrapper: weakref.ref[Any] | None = None
        self.identity, self._listener = identity, listener
        self.check: InputCheck | None = None

    def _wrap(self, compiled: Callable[..., Any] | None, call: Callable[..., Any]) -> FunctionType:
        reference, begins, ends = self._module, self._begins, self._ends
        quiet, records, head = self._listener.quiet, self._listener.quiet.records, FORWARD | self.identity << 32

        def timed_call(*args: Any, **kwargs: Any) -> Any:
            nonlocal records
            module = reference()
            flags = GRADIENT << 8 if gradients() else 0
            if module is not None and module.training:
                flags += TRAINING << 8
            begin = now()
            if begin >= quiet.until:
                begins(begin, args, kwargs)
            try:
                if compiled:
                    return compiled(*args, **kwargs)
                if kwargs or len(args) != 1:
                    return call(module, *args, **kwargs)
                return call(module, args[0])
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                end = now()
                if end < quiet.until and get_ident() == quiet.trainer:
                    records += head + flags + quiet.thread, begin, end
                else:
                    ends(head + flags, begin, end)

        assert isinstance(timed_call, FunctionType)
        return timed_call

    def _begins(self, begin: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self.check is not None and begin >= self.check.due and gradients():
            told(self._listener, self.check.look, begin, arguments, named)

    def _ends(self, head: int, begin: int, end: int) -> None:
        try:
            if end < self._listener.quiet.until:
                self._listener.quiet.keep(head, begin, end)
            else:
                self._listener.forward_ends(self.identity, begin, end, head >> 8 & 255)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)

    def install(self) -> None:
        """Puts the timed call into the instance's slot, unless one of ours is there."""
        module = self._module()
        if module is None:
            return
        before = module.__dict__.get(SLOT)
        wrapper = self._wrap(before, type(module)._call_impl)
        if getattr(before, "__code__", None) is wrapper.__code__:
            return
        wrapper.__dict__[BEFORE] = before
        self._wrapper = weakref.ref(wrapper)
        module.__dict__[SLOT] = wrapper

    def remove(self) -> None:
        """Restores the slot unless the user has compiled the module in the meantime."""
        module = self._module()
        if module is None or not self.alive:
            return
        before = module.__dict__[SLOT].__dict__[BEFORE]
        if before is None:
            del module.__dict__[SLOT]
        else:
            module.__dict__[SLOT] = before

    @property
    def module(self) -> torch.nn.Module | None:
        return self._module()

    @property
    def alive(self) -> bool:
        """False once the module is gone or somebody else has replaced the slot (module.compile(), for one)."""
        module = self._module()
        wrapper = self._wrapper() if self._wrapper is not None else None
        return module is not None and wrapper is not None and module.__dict__.get(SLOT) is wrapper


class ModuleCallWatch:
    """Sees module calls before the first backward, to find jobs that only infer: `inferring` is told the first module
    with parameters when it is called for the fourth time.

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
        return self._original.__get__(instance, owner)  # a trial may have its own descriptor beneath

    def install(self) -> None:
        torch.nn.Module.__call__ = self

    def remove(self) -> None:
        if torch.nn.Module.__dict__["__call__"] is self:
            torch.nn.Module.__call__ = self._original


class NewModelWatch:
    """Finds the models of optimisers that come after the first steps (folds, sweeps, layers trained one by one):
    `found` is told of each module with parameters that lies in no known one when it is called.

    As `ModuleCallWatch`, a descriptor in the place of nn.Module.__call__, for BOUNDARIES boundaries of steps.
    """

    BOUNDARIES, MOST_MODELS = 3, 1000
    """Of a job that keeps more models alive at once, the others are not timed: it must not grow our tables."""

    def __init__(self, found: Callable[[torch.nn.Module], None], quiet: Quiet) -> None:
        self._original = torch.nn.Module.__dict__["__call__"]
        self._found, self._quiet = found, quiet
        self._known: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._left = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._original
        try:
            if gradients() and get_ident() == self._quiet.trainer:
                self._called(instance)
        except Exception:  # noqa: BLE001 - the probe's boundary: the model stays untimed, the job goes on
            self.remove()
        return self._original.__get__(instance, owner)

    def _called(self, module: torch.nn.Module) -> None:
        known = self._known.get(id(module))
        if known is None or known() is not module:
            self._know(module)
            if next(parameters_of(module), None) is not None:
                self._found(module)

    def _know(self, root: torch.nn.Module) -> None:
        self._known |= {id(module): weakref.ref(module) for module in modules_of(root)}

    def install(self, roots: Sequence[RootPatch]) -> None:
        """Looks for modules that lie in none of these. Before there are any, discovery is still to come."""
        if not 0 < len(roots) < self.MOST_MODELS:
            return
        for root in roots:
            if (module := root.module) is not None:
                self._know(module)
        self._left = self.BOUNDARIES
        if torch.nn.Module.__dict__["__call__"] is self._original:  # else another one of ours is there
            torch.nn.Module.__call__ = self

    def boundary(self) -> None:
        """A step has ended."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.remove()

    def remove(self) -> None:
        """Takes itself away, unless somebody else has come since."""
        self._known.clear()
        if torch.nn.Module.__dict__["__call__"] is self:
            torch.nn.Module.__call__ = self._original
