"""Changes of the optimiser's step and of what leads to it: gradients and their exchange.

The change "accumulation": one update for several backwards, and one exchange of gradients (no_sync).

The training is another one; what counts is how fast it goes.

The change "no-sync": gradients under DistributedDataParallel are exchanged with the last backward of an update only.

How many backwards an update has is learned from the first one. One that comes earlier (the rest of an epoch) finds its
gradients exchanged by hand: no rank ever updates by its own ones alone.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.changes.applier import Applier, count, with_arguments

VARIANTS = ("fused", "foreach")


class OptimizerVariant(Applier):
    """arguments: fused or foreach, True or False. Optimisers of a class of the user's own are left alone."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._name = next(name for name in VARIANTS if arguments.get(name) is not None)
        self._wanted = bool(arguments[self._name])
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._used: dict[int, str] = {}
        self._reason = ""

    def install(self) -> None:
        """Wraps the constructors of the classes that know the variant."""
        classes: list[Any] = [each for each in vars(torch.optim).values() if isinstance(each, type)]
        for cls in classes:
            if issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
                signature = inspect.signature(cls.__init__)
                if self._name in signature.parameters:
                    cls.__init__ = self._changed(cls, cls.__init__, signature)

    def _changed(self, cls: type, original: Any, signature: inspect.Signature) -> Any:
        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if type(optimizer) is not cls:
                original(optimizer, *args, **kwargs)
                return
            try:
                bound = signature.bind(optimizer, *args, **kwargs)
                given = bound.arguments.get(self._name)
                bound.arguments["params"] = _list(bound.arguments["params"])
                args, kwargs = (optimizer, *bound.args[1:]), bound.kwargs
                edited = {**bound.arguments, self._name: self._wanted}
                for other in VARIANTS:
                    if other != self._name and other in signature.parameters and self._wanted:
                        edited[other] = None  # torch allows one of them
                bound.arguments.update(edited)
                original(*bound.args, **bound.kwargs)
            except (RuntimeError, TypeError, ValueError) as error:
                self._reason = f"{cls.__name__} has no {self._name} variant here: {error}"
                original(*(args if args and args[0] is optimizer else (optimizer, *args)), **kwargs)
                return
            if given is self._wanted:
                self._reason = f"{cls.__name__} was made with {self._name}={given} already"
            else:
                self.applied = True
                self._made.add(optimizer)

        return __init__

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Looks whether it holds where a step is taken."""
        if optimizer in self._made and all(each.get(self._name) is self._wanted for each in optimizer.param_groups):
            self._used[id(optimizer)] = type(optimizer).__name__

    def boundary(self, steps: int) -> None:
        """Says what was seen."""
        self.exercised = bool(self._used)
        names = ", ".join(sorted(set(self._used.values())))
        if self.exercised:
            self.detail = f"{self._name}={self._wanted} in {count(len(self._used), 'optimiser')} ({names})"
        else:
            self.detail = self._reason or f"no optimiser of torch's own with the option {self._name}"


def _list(parameters: Any) -> Any:
    """A generator can be read once, and the constructor may be called twice."""
    return parameters if isinstance(parameters, list | tuple | torch.Tensor | dict) else list(parameters)


PACKAGES = (("bitsandbytes", "bitsandbytes.optim"), ("torchao", "torchao.optim"))
"""Package, and the module in which its Adam8bit and AdamW8bit are."""
CLASSES = ("Adam", "AdamW")


class Optimizer8Bit(Applier):
    """arguments: package (one of PACKAGES; else the first that is installed)."""

    def install(self) -> None:
        """Replaces the two classes by ones that make the other's objects."""
        wanted = self.arguments.get("package")
        known = [pair for pair in PACKAGES if wanted in (None, pair[0])]
        found = next((pair for pair in known if importlib.util.find_spec(pair[0]) is not None), None)
        if found is None:
            self.refused(f"not installed: {' or '.join(name for name, _ in known) or wanted}")
            return
        self._module = found[1]
        self.detail = f"the job makes no {' or '.join(CLASSES)} of torch.optim"
        for name in CLASSES:
            setattr(torch.optim, name, self._replaced(name))

    def _replaced(self, name: str) -> type:
        original: Any = getattr(torch.optim, name)
        change = self

        def make(cls: type, params: Any, *args: Any, **kwargs: Any) -> Any:
            if cls is not replacement:
                return object.__new__(cls)
            params = list(params)
            other = change._make(original, name, params, args, kwargs)
            return original(params, *args, **kwargs) if other is None else other

        # An object of another class from __new__: Python does not call this one's __init__.
        replacement = type(name, (original,), {"__new__": make, "__module__": original.__module__})
        return replacement

    def _make(self, original: Any, name: str, params: list[Any], args: Any, kwargs: Any) -> Any:
        try:
            group = params[0]["params"] if isinstance(params[0], dict) else params
            if not all(each.is_cuda for each in group):
                self.refused("its kernels need a CUDA device")
                return None
            cls = getattr(importlib.import_module(self._module), f"{name}8bit")
            given = inspect.signature(original).bind(params, *args, **kwargs).arguments
            known = inspect.signature(cls).parameters
            made = cls(**{key: value for key, value in given.items() if key in known})
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the job gets the optimiser that it asked for
            self.failed(error)
            return None
        self.applied = True
        self._class = cls
        self.detail = f"{cls.__module__}.{cls.__name__}"
        return made

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Whether it makes steps."""
        if self.applied and isinstance(optimizer, self._class):
            self.exercised = True


ARGUMENT = "set_to_none"


class ZeroGrad(Applier):
    """No arguments."""

    def install(self) -> None:
        """Wraps zero_grad of optimisers and modules."""
        self._calls = 0
        self.detail = "the job does not ask for zeros"

        def edit(bound: inspect.BoundArguments) -> None:
            if bound.arguments.get(ARGUMENT, True) is False:
                bound.arguments[ARGUMENT] = True
                self._calls += 1

        for owner in (torch.optim.Optimizer, torch.nn.Module):
            owner.zero_grad = with_arguments(self, owner.zero_grad, edit)
        self.applied = True

    def boundary(self, steps: int) -> None:
        """Says how often zeros were asked for."""
        if self._calls:
            self.exercised = True
            self.detail = f"{count(self._calls, 'call')} of zero_grad changed"


Optimizer = torch.optim.Optimizer
Distributed = torch.nn.parallel.DistributedDataParallel


class Accumulation(Applier):
    """arguments: steps (updates that become one)."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._every = int(arguments["steps"])
        self._calls: dict[int, int] = {}
        self._updates = 0
        self._inside = self._updated = False
        self._distributed: list[Any] = []
        self.detail = "no optimiser has made a step"

    def install(self) -> None:
        """Every optimiser class passes its step through `profile_hook_step` when it is first made (torch 2.4-2.13)."""
        if self._every < 2:
            self.refused("one backward for an update is what the job does")
            return
        hook = Optimizer.profile_hook_step
        Optimizer.profile_hook_step = staticmethod(lambda step: self._gated(hook(step)))
        Optimizer.zero_grad = self._only_first(Optimizer.zero_grad)
        torch.nn.Module.zero_grad = self._only_first(torch.nn.Module.zero_grad)
        scaler = torch.amp.GradScaler
        scaler.step, scaler.unscale_, scaler.update = (
            self._scaler_step(scaler.step),
            self._scaler_unscale(scaler.unscale_),
            self._scaler_update(scaler.update),
        )
        self.applied = True

    def root(self, module: torch.nn.Module) -> None:
        """Gradients are exchanged with the last backward only."""
        self._distributed += [each for each in module.modules() if isinstance(each, Distributed)]
        self._exchange(1)

    def _gated(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def gated(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:  # a subclass calls the step of its base
                return step(optimizer, *args, **kwargs)
            if not self._count(optimizer):
                return _evaluated(args[0] if args else kwargs.get("closure"))
            gradients = [
                each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None
            ]
            for gradient in gradients:
                gradient.mul_(1 / self._every)
            self._inside = True
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                self._inside = False
                self._updates += 1

        return gated

    def _count(self, optimizer: Any) -> bool:
        """One more call of the optimiser's step. Whether this one updates."""
        calls = self._calls[id(optimizer)] = self._calls.get(id(optimizer), 0) + 1
        self._exchange(calls + 1)
        return calls % self._every == 0

    def _exchange(self, call: int) -> None:
        for module in self._distributed:
            module.require_backward_grad_sync = call % self._every == 0

    def _only_first(self, zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(zero_grad)
        def first(owner: Any, *args: Any, **kwargs: Any) -> Any:
            calls = [self._calls.get(id(owner), 0)] if isinstance(owner, Optimizer) else self._calls.values()
            if not any(each % self._every for each in calls):
                return zero_grad(owner, *args, **kwargs)
            return None

        return first

    # -- torch's gradient scaler: nothing is unscaled before the last backward ----------------------------------------

    def _next_updates(self, optimizer: Any) -> bool:
        return (self._calls.get(id(optimizer), 0) + 1) % self._every == 0

    def _scaler_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def gated(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._updated = self._next_updates(optimizer)
            if self._updated:
                return step(scaler, optimizer, *args, **kwargs)
            self._count(optimizer)
            return None

        return gated

    def _scaler_unscale(self, unscale: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(unscale)
        def gated(scaler: Any, optimizer: Any) -> Any:
            return unscale(scaler, optimizer) if self._next_updates(optimizer) else None

        return gated

    def _scaler_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def gated(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            return update(scaler, *args, **kwargs) if self._updated else None

        return gated

    def boundary(self, steps: int) -> None:
        """Says how many updates there were."""
        if self._updates:
            self.exercised = True
            total = sum(self._calls.values())
            synchronised = " (no_sync between them)" if self._distributed else ""
            self.detail = f"{self._updates} updates for {total} calls of step{synchronised}"


def _evaluated(closure: Callable[[], Any] | None) -> Any:
    """A closure computes the loss and calls backward: that is the micro-batch."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class FewerExchanges(Applier):
    """No arguments. A job that has no_sync of its own is left alone."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._models: list[Any] = []
        self._every = self._backwards = self._skipped = self._total = 0
        self._quiet = self._refused = False
        self.detail = "no model is trained under DistributedDataParallel"

    def root(self, module: torch.nn.Module) -> None:
        """Models under it, at any depth."""
        self._models += [each for each in module.modules() if isinstance(each, Distributed)]
        if self._models:
            self.detail = "no update has been made"

    def after_backward(self) -> None:
        """Decides about the next one: DistributedDataParallel looks at its switch in the forward."""
        if not self._models or self._refused:
            return
        if not self._quiet and not all(each.require_backward_grad_sync for each in self._models):
            self._refused, self.exercised = True, False
            self.refused("the job has no_sync() of its own")
            return
        self._total += 1
        self._skipped += self._quiet
        self._backwards += 1
        self._set(self._every > 1 and (self._backwards + 1) % self._every != 0)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The first optimiser of a step; the others find no backward since."""
        if not self._backwards or self._refused:
            return
        if not self._every:
            self._every = self._backwards
        elif self._every > 1 and self._backwards % self._every:
            self._exchange()
        self._backwards = 0
        self._set(self._every > 1)

    def _set(self, quiet: bool) -> None:
        self._quiet = quiet
        for model in self._models:
            model.require_backward_grad_sync = not quiet

    def _exchange(self) -> None:
        """As the last backward would have done it: the mean over the ranks."""
        for model in self._models:
            group = model.process_group
            for parameter in model.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad, group=group)
                    parameter.grad.div_(torch.distributed.get_world_size(group))

    def boundary(self, steps: int) -> None:
        """Says what was saved."""
        if self._refused or not self._every:
            return
        if self._every == 1:
            self.refused("an update has one backward, whose gradients must be exchanged")
            return
        self.applied = True
        self.exercised = self._skipped > 0
        self.detail = f"{self._skipped} of {self._total} backwards without an exchange"


SETTINGS = ("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "find_unused_parameters")


class DistributedSettings(Applier):
    """arguments: any of SETTINGS."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._wanted = {name: arguments[name] for name in SETTINGS if name in arguments}
        self.detail = "the job makes no DistributedDataParallel"

    def install(self) -> None:
        """Wraps its constructor."""
        cls = torch.nn.parallel.DistributedDataParallel

        def edit(bound: inspect.BoundArguments) -> None:
            if all(bound.arguments.get(name) == value for name, value in self._wanted.items()):
                self.refused("the job sets it so already")
                return
            bound.arguments.update(self._wanted)
            self.applied = True

        cls.__init__ = with_arguments(self, cls.__init__, edit)

    def root(self, module: torch.nn.Module) -> None:
        """A model that is trained under it."""
        if self.applied and isinstance(module, torch.nn.parallel.DistributedDataParallel):
            self.exercised = True
            self.detail = ", ".join(f"{name}={value}" for name, value in self._wanted.items())
