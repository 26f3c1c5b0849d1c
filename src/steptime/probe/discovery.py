"""Discovery: a step or two under Python's profile function. It finds the user's top modules, reads and moves of
tensors, the calls of each user line, and the expensive functions.

The profile function sees every call of the training thread, also those that no patch could see unnoticed, and slows the
thread by half at most. No module and no frame of the user's is kept.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from inspect import CO_NESTED
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from steptime.probe import identity, sites
from steptime.probe.datasets import Padded, padded_share, reads_tokens
from steptime.probe.inputs import CallWithout, InputObserver, Inputs
from steptime.probe.modules import named_modules
from steptime.probe.objects import being_traced, parameters_of, unasked
from steptime.probe.ours import pass_on, suppressed

READS = frozenset(
    {"item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__", "__index__", "is_nonzero"}
)
"""Tensor methods that wait for the device."""
MOVES = frozenset({"to", "cuda", "copy_", "pin_memory"})
"""Tensor methods that may copy from one device to another."""
OPERATORS = ("__bool__", "__float__", "__int__", "__index__")
"""Methods called through the interpreter's slots, which the profile function does not see."""
ENGINE = "run_backward"
"""Function of autograd that runs a backward pass."""
FILLS = (
    frozenset({"pad_sequence", "pad", "constant_pad_nd"}), frozenset({"full", "new_full"}),
    frozenset({"zeros", "new_zeros", "ones", "new_ones"}),
)  # fmt: skip
"""Functions by which rows are filled up, where a loader makes batches; the first kind tells most."""
WAITS = frozenset({"synchronize", "_cuda_synchronize", "_synchronize"})
LEAST_SHARE = 0.02
"""Smallest fraction of the step for which a function's lines are timed."""
MOST_CALLS = 100
"""Most calls of a function in the discovery steps; beyond, timing its lines costs more than it shows."""
MOST_FUNCTIONS = 16
MOST_CALLED, MOST_NAMES = 2_000, 24
"""Most lines whose callees are kept, and most names per line."""
OWN = "steptime."
TORCH_CALLS = frozenset(dir(torch.Tensor)) | frozenset(dir(torch._C._VariableFunctions)) | frozenset(dir(torch._C._nn))
"""Names of torch's functions in C. Python's own functions, such as min, and methods of its objects share some."""
DEVICE = torch._C.TensorBase.device
MOST_WALKS = 100
"""Most calls of one package function from torch or the standard library for which the user's line is searched."""

now = time.perf_counter_ns


@dataclass
class Found:
    """Result of the discovery. top_modules: modules with parameters, called from outside of other modules and of the
    loader. facts: (kind, fields) of each fact to write. functions: code of user functions whose lines are worth timing,
    most expensive first. calls: number of calls of Python and C functions, as a trace with stacks would hold them;
    torch_calls: number of those to torch's C functions. inputs: function from the number of optimizers to the model's
    `Inputs`, or None if the first dimension may not be the batch. without_gradients: function that returns the calls of
    a module. autocast: dtype of the autocast around modules that are trained, "off", or None if none was called."""

    top_modules: list[torch.nn.Module] = field(default_factory=list)
    facts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    functions: tuple[CodeType, ...] = ()
    calls: int = 0
    torch_calls: int = 0
    inputs: Callable[[int], Inputs | None] = lambda optimizers: None
    without_gradients: Callable[[torch.nn.Module], tuple[CallWithout, ...]] = lambda module: ()
    autocast: str | None = None


CALLS = frozenset({"call", "c_call"})
"""Events of Python's profile function."""
OTHER, USER, MODULE, LOADER, UPDATE, PACKAGE, EMBEDDING = range(7)
"""Roles of code objects: none of these, the user's, nn.Module's call, the loader's next, an optimizer's step, an
installed package's, the function that reads an embedding."""


def name_of(function: Any) -> str:
    """Returns a C function's name with its module or its owner's class: "builtins.print", "torch.Tensor.item". It runs
    no method of the owner, which may be a proxy of the user's."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    kind = type(owner)
    if issubclass(kind, ModuleType):
        return f"{ModuleType.__getattribute__(owner, '__name__')}.{name}"
    if owner is None:
        return f"{getattr(function, '__module__', None) or 'builtins'}.{name}"
    kind = owner if issubclass(kind, type) else torch.Tensor if issubclass(kind, torch._C.TensorBase) else kind
    return f"{kind.__module__}.{kind.__qualname__}.{name}"


class _Use:
    """Calls and inclusive time, ns, of one code object. holds: a forward, backward or update ran inside of it.

    The code object is held for the discovery, so that its id stays unique. wraps: a function made inside a function of
    torch's or a package's, such as a decorator's: its caller counts as the caller of what it calls."""

    __slots__ = ("active", "calls", "code", "holds", "role", "time", "wraps")

    def __init__(self, code: CodeType, role: int) -> None:
        self.code, self.role = code, role
        self.wraps = role in (OTHER, PACKAGE) and bool(code.co_flags & CO_NESTED)
        self.calls = self.time = self.active = 0
        self.holds = False


class _Operator:
    """Descriptor on torch.Tensor that sees `if loss:`, `float(loss)`, `int(loss)` and returns the original method."""

    def __init__(self, name: str, original: Any, seen: Callable[[str, Any, FrameType], None]) -> None:
        self._name, self._original, self._seen = name, original, seen

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._original
        self._seen(self._name, instance, sys._getframe(1))
        return self._original.__get__(instance, owner)


class Discovery:
    """Observer of the calling thread from `start` to `stop`, or for `most_calls`, which take microseconds each."""

    def __init__(self, most_calls: int = sys.maxsize) -> None:
        self._uses: dict[int, _Use] = {}
        self._roles = {
            torch.nn.Module._wrapped_call_impl.__code__: MODULE,
            _BaseDataLoaderIter.__next__.__code__: LOADER,
            torch.optim.Optimizer.profile_hook_step(lambda *_: None).__code__: UPDATE,
            torch.nn.functional.embedding.__code__: EMBEDDING,
        }
        self._stack: list[tuple[_Use, int]] = []
        self._top_modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._sites: dict[tuple[str, str, str, int], list[Any]] = {}
        self._module_depth = self._loader_depth = self._forwards = 0
        self._start = self._end = 0
        self._calls, self._torch_calls, self._most_calls = 0, 0, most_calls
        self._padded: list[Padded] = []
        self._embedded: set[tuple[int, ...]] = set()
        self._seen: set[tuple[int, int, int]] = set()
        self._called: dict[tuple[str, int], dict[str, None]] = {}
        self._fills: dict[int, tuple[str, int, str]] = {}
        self._inputs = InputObserver()
        self._autocast: str | None = None
        self._profile = self._make()

    def start(self) -> bool:
        """Starts the discovery. Returns False, and does nothing, while another profiler or tracer is on."""
        if sys.getprofile() is not None or sys.gettrace() is not None:
            return False
        self._start = now()
        # TorchDynamo, once it has compiled something, looks such methods up itself.
        compiled = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        for name in () if compiled else OPERATORS:
            if name not in torch.Tensor.__dict__ and hasattr(torch.Tensor, name):
                setattr(torch.Tensor, name, _Operator(name, getattr(torch.Tensor, name), self._read))
        sys.setprofile(self._profile)
        return True

    def give_up(self) -> None:
        """Removes the profile function, anywhere in the user's program, if a top module was found; the rest can
        wait."""
        if self._top_modules:
            self._take_away()

    def _take_away(self) -> None:
        if sys.getprofile() is self._profile:
            sys.setprofile(None)
        for name in OPERATORS:
            if isinstance(torch.Tensor.__dict__.get(name), _Operator):
                delattr(torch.Tensor, name)
        self._end = self._end or now()

    def stop(self, steps: int = 1) -> Found:
        """Ends the discovery after `steps` steps, and returns its result."""
        self._take_away()
        window = self._end - self._start
        top_modules = [
            module for module in (reference() for reference in self._top_modules.values()) if module is not None
        ]
        padded = _read_tokens(self._padded, self._embedded, top_modules)
        facts = _facts({"steps": steps, "forwards": self._forwards}, self._sites, self._called, padded, self._fills)
        functions, inputs = _worth_timing(self._uses.values(), window), self._inputs.found
        counts, without = (self._calls, self._torch_calls), self._inputs.without_gradients
        found = Found(top_modules, facts, functions, *counts, inputs, without, self._autocast)
        self._stack.clear()
        self._uses.clear()
        return found

    # -- the profile function --------------------------------------------------------------------------------------

    def _make(self) -> Callable[[FrameType, str, Any], None]:
        def profile(frame: FrameType, event: str, argument: Any) -> None:
            try:
                if event in CALLS:
                    self._calls += 1
                    if self._calls == self._most_calls:
                        self._take_away()
                if event == "c_call":
                    self._builtin(frame, argument)
                    if self._use(frame).role == USER:
                        self._note(frame, id(frame.f_code), lambda: name_of(argument))
                elif event == "call":
                    self._call(frame)
                elif event == "return":
                    self._return(frame.f_code, argument)
                elif self._inputs.in_backward and getattr(argument, "__name__", "") == ENGINE:
                    self._look(self._inputs.backward, False)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: what was found so far is kept, the job goes on
                sys.setprofile(None)
                pass_on(error)

        return profile

    def _builtin(self, frame: FrameType, function: Any) -> None:
        name = getattr(function, "__name__", "")
        self._torch_calls += name in TORCH_CALLS and _is_torchs(function)
        if name in READS or name in MOVES:
            owner = getattr(function, "__self__", None)
            if isinstance(owner, torch._C.TensorBase):
                self._read(name, owner, frame)
        elif name == ENGINE:
            self._holds()
            self._look(self._inputs.backward, True)
        elif name in WAITS:
            self._site(name, "cuda", frame)

    def _use(self, frame: FrameType) -> _Use:
        return self._uses.get(id(frame.f_code)) or self._new(frame)

    def _call(self, frame: FrameType) -> None:
        use = self._use(frame)
        role = use.role
        self._notes(frame, use)
        if role == USER:
            use.calls += 1
            use.active += 1
            self._stack.append((use, now()))
        elif role == MODULE:
            self._module(frame)
        elif role == LOADER:
            self._loader_depth += 1
        elif role == UPDATE:
            self._holds()
            self._look(self._inputs.update, True)
        elif role == EMBEDDING and self._padded and not being_traced():
            with unasked(), suppressed(RuntimeError):  # a nested tensor has no shape
                self._embedded.add(tuple(frame.f_locals["input"].shape))

    def _new(self, frame: FrameType) -> _Use:
        code = frame.f_code
        role = self._roles.get(code, OTHER)
        if role == OTHER:
            role = {sites.USER: USER, sites.LIBRARY: PACKAGE}.get(sites.whose_frame(frame), OTHER)
        use = self._uses[id(code)] = _Use(code, role)
        return use

    def _notes(self, frame: FrameType, use: _Use) -> None:
        """Notes a Python function at the user's line that calls it. A package function called by torch, such as a
        metric's forward, belongs to the user's line outside of that call."""
        outer = frame.f_back
        while outer is not None and self._use(outer).wraps:
            outer = outer.f_back
        if outer is None or use.wraps:
            return
        caller = self._use(outer).role
        if use.role == PACKAGE and caller not in (USER, PACKAGE):
            use.calls += 1
            while use.calls <= MOST_WALKS and outer is not None and sites.whose_frame(outer) != sites.USER:
                outer = outer.f_back
            caller = USER if use.calls <= MOST_WALKS else OTHER
        if caller == USER and outer is not None and not use.code.co_name.startswith("<"):
            name, module = getattr(use.code, "co_qualname", use.code.co_name), str(frame.f_globals.get("__name__", ""))
            if not module.startswith(OWN):
                self._note(outer, id(use.code), lambda: f"{module}.{name}")

    def _note(self, frame: FrameType, callee: int, name: Callable[[], str]) -> None:
        """Notes a callee at a line of the user's `frame`, once per place in the code."""
        key = id(frame.f_code), frame.f_lasti, callee
        if key in self._seen or len(self._called) >= MOST_CALLED:
            return
        self._seen.add(key)
        place = os.path.abspath(frame.f_code.co_filename), frame.f_lineno or frame.f_code.co_firstlineno
        names = self._called.setdefault(place, {})
        if len(names) < MOST_NAMES:
            names[called := name()] = None
            kind = next((at for at, each in enumerate(FILLS) if called.rpartition(".")[2] in each), None)
            if self._loader_depth and kind is not None:
                self._fills.setdefault(kind, (*place, frame.f_code.co_name))

    def _return(self, code: CodeType, result: Any) -> None:
        use = self._uses.get(id(code))
        if use is None:
            return
        if use.role == USER:
            if self._stack and self._stack[-1][0] is use:
                _, start = self._stack.pop()
                use.active -= 1
                if not use.active:
                    use.time += now() - start
        elif use.role == MODULE:
            self._module_depth = max(0, self._module_depth - 1)
            if not self._module_depth:
                self._look(self._inputs.returned, result)
        elif use.role == UPDATE:
            self._look(self._inputs.update, False)
        elif use.role == LOADER:
            self._loader_depth = max(0, self._loader_depth - 1)
            self._batch(result)

    def _batch(self, batch: Any) -> None:
        try:
            with unasked():
                found = padded_share(batch)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: a batch that cannot be read shows nothing
            pass_on(error)
            return
        if found is not None:
            self._padded.append(found)

    def _holds(self) -> None:
        for use, _ in self._stack:
            use.holds = True

    def _module(self, frame: FrameType) -> None:
        if not self._module_depth and not self._loader_depth:
            module = frame.f_locals["self"]
            if id(module) not in self._top_modules and next(parameters_of(module), None) is not None:
                self._top_modules[id(module)] = weakref.ref(module)
            if id(module) in self._top_modules:
                self._forwards += 1
                place = None if torch.is_grad_enabled() else _caller(frame)
                self._look(self._inputs.called, module, frame.f_locals["args"], frame.f_locals["kwargs"], place)
            self._holds()
        if self._autocast in {None, "off"} and torch.is_grad_enabled():  # a model may switch it on within its forward
            self._autocast = identity.autocast_dtype()
        self._module_depth += 1

    def _look(self, reported: Callable[..., None], *arguments: Any) -> None:
        if being_traced():
            return
        try:
            with unasked():
                reported(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: inputs of the user's kinds that cannot be looked at
            self._inputs.spoilt = True
            pass_on(error)

    def _read(self, name: str, tensor: Any, frame: FrameType) -> None:
        if self._use(frame).role == USER:
            self._note(frame, id(name), lambda: f"torch.Tensor.{name}")
        if not self._loader_depth:
            with unasked():  # a function mode of the job's may be on
                device = DEVICE.__get__(tensor).type
            self._site(name, device, frame)

    def _site(self, name: str, device: str, frame: FrameType) -> None:
        place = sites.user_frame(frame, sites.LIBRARY)
        if place is None:
            return
        known = self._sites.setdefault((name, device, place[0], place[1]), [0, place])
        known[0] += 1


def _caller(frame: FrameType | None) -> tuple[str, int, str] | None:
    """Returns the user's place that calls a module, from the frame of its call, outside of its own methods."""
    called = sites.variables(frame).get("self") if frame is not None else None
    while frame is not None and sites.variables(frame).get("self") is called:
        frame = frame.f_back
    return sites.user_frame(frame)


def _is_torchs(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    return (
        module.startswith("torch") if module else isinstance(getattr(function, "__self__", None), torch._C.TensorBase)
    )


def _read_tokens(
    padded: list[Padded], embedded: set[tuple[int, ...]], top_modules: list[torch.nn.Module]
) -> list[tuple[float, int, float]]:
    """Returns fraction of padding, size and fraction beyond the longest row of the batches that an embedding reads.
    Compiled code calls no Python function, so without such a call any batch counts that an embedding of the models
    could read."""
    sizes = [] if embedded else [
        int(module.__dict__.get("num_embeddings", 0)) for _, module in named_modules(top_modules)
        if isinstance(module, torch.nn.Embedding)
    ]  # fmt: skip
    return [
        (share, shape[0] * shape[1], beyond)
        for share, shape, (smallest, largest), beyond in padded
        if any(reads_tokens(shape, read) for read in embedded)
        or (smallest >= 0 and any(largest < size for size in sizes))
    ]


def _facts(
    seen: dict[str, int],
    called_at: dict[tuple[str, str, str, int], list[Any]],
    called: dict[tuple[str, int], dict[str, None]],
    padded: list[tuple[float, int, float]],
    fills: dict[int, tuple[str, int, str]],
) -> list[tuple[str, dict[str, Any]]]:
    """Returns the facts to write. seen: numbers of steps and of forwards that were looked at."""
    facts: list[tuple[str, dict[str, Any]]] = [
        ("site", {**seen, "name": name, "device": device, "count": count, "site": sites.line_at(place)})
        for (name, device, _, _), (count, place) in called_at.items()
    ]
    facts += [("called", {"file": file, "line": line, "names": list(names)}) for (file, line), names in called.items()]
    if padded:
        share, tokens, beyond = (sum(each) / len(padded) for each in zip(*padded, strict=True))
        counts = {"share": share, "batches": len(padded), "tokens": tokens, "beyond": beyond}
        facts.append(("padding", {**counts, "site": sites.line_at(fills[min(fills)]) if fills else None}))
    return facts


def _worth_timing(found: Iterable[_Use], window: int) -> tuple[CodeType, ...]:
    uses = [use for use in found if use.role == USER and 0 < use.calls <= MOST_CALLS]
    worth = [use for use in uses if use.holds or use.time >= LEAST_SHARE * window]
    worth.sort(key=lambda use: (use.holds, use.time), reverse=True)
    return tuple(use.code for use in worth[:MOST_FUNCTIONS])
