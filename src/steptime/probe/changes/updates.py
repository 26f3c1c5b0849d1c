"""Changes of the optimizer's step, the gradients and their exchange, and of what each rank keeps of them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import itertools
from typing import Any

import torch
from torch import distributed

from steptime.probe.changes.applier import Applier, count, with_arguments
from steptime.probe.identity import ranks
from steptime.probe.objects import SideTable
from steptime.probe.ours import pass_on

VARIANTS = ("fused", "foreach")


class OptimizerVariant(Applier):
    """Change to fused or foreach optimizers. arguments: fused or foreach, True. The user's own classes stay."""

    switchable = True

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._name = next(name for name in VARIANTS if arguments.get(name))
        self._made: SideTable[bool] = SideTable()
        self._used: dict[int, str] = {}
        self._reason = f"no torch optimizer with the option {self._name}"
        self._switched: list[tuple[Any, list[dict[str, Any]], list[tuple[Any, Any]]]] = []

    def on(self) -> None:
        """Switches existing optimizers: sets the option of their groups, and moves their step counts if fused."""
        super().on()
        for optimizer in self.optimizers():
            if (reason := _unfit(optimizer, self._name)) is not None:
                self._reason = reason or self._reason
                continue
            groups = [{name: group[name] for name in VARIANTS if name in group} for group in optimizer.param_groups]
            for group, before in zip(optimizer.param_groups, groups, strict=True):
                group.update({**dict.fromkeys(before), self._name: True})
            self._switched.append((optimizer, groups, _move_counts(optimizer, self._name == "fused")))
            if self._name == "fused":
                optimizer._step_supports_amp_scaling = True
            self.applied = True
            self._made.keep(optimizer, True)

    def off(self) -> None:
        super().off()
        for optimizer, groups, counts in self._switched:
            for group, before in zip(optimizer.param_groups, groups, strict=False):
                group.update(before)
            for state, before in counts:
                state["step"] = before.copy_(state["step"])
            if self._name == "fused":  # what its constructor sets, for gradient scalers
                del optimizer._step_supports_amp_scaling
        self._switched.clear()

    def install(self) -> None:
        """Wraps the constructors of classes that have the option."""
        classes: list[Any] = [each for each in vars(torch.optim).values() if isinstance(each, type)]
        for cls in classes:
            if issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
                signature = inspect.signature(cls.__init__)
                if self._name in signature.parameters:
                    cls.__init__ = self._changed(cls, cls.__init__, signature)

    def _changed(self, cls: type, original: Any, signature: inspect.Signature) -> Any:
        none = {name: None for name in VARIANTS if name in signature.parameters}  # torch allows one of them

        @functools.wraps(original)
        def __init__(*args: Any, **kwargs: Any) -> None:
            optimizer = args[0]
            if type(optimizer) is not cls:
                original(*args, **kwargs)
                return
            try:
                bound = signature.bind(*args, **kwargs)
                given, parameters = bound.arguments.get(self._name), bound.arguments["params"]
                if not isinstance(parameters, list | tuple | torch.Tensor | dict):
                    # A generator can be read once, and the constructor may be called twice.
                    bound.arguments["params"] = list(parameters)
                args, kwargs = bound.args, bound.kwargs
                bound.arguments.update({**none, self._name: True})
                original(*bound.args, **bound.kwargs)
            except (RuntimeError, TypeError, ValueError) as error:
                pass_on(error)
                self._reason = f"{cls.__name__} has no {self._name} variant here: {error}"
                original(*args, **kwargs)
                return
            if given is True:
                self._reason = f"{cls.__name__} was already made with {self._name}={given}"
            else:
                self.applied = True
                self._made.keep(optimizer, True)

        return __init__

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Checks the option of an optimizer that takes a step."""
        if self._made.of(optimizer) and all(each.get(self._name) is True for each in optimizer.param_groups):
            self._used[id(optimizer)] = type(optimizer).__name__

    def boundary(self, steps: int) -> None:
        self.exercised, self.detail = bool(self._used), self._reason
        if self._used:
            names = ", ".join(sorted(set(self._used.values())))
            self.detail = f"{self._name}=True in {count(len(self._used), 'optimizer')} ({names})"


def _unfit(optimizer: Any, name: str) -> str | None:
    """Returns why an optimizer cannot be switched, "" for the usual reason; None if it can."""
    cls = type(optimizer)
    own = cls.__module__.startswith("torch.optim") and name in inspect.signature(cls.__init__).parameters
    if not own or any(name not in group or group.get("differentiable") for group in optimizer.param_groups):
        return ""
    if all(group[name] is True for group in optimizer.param_groups):
        return f"{cls.__name__} was made with {name}=True already"
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if name == "fused":
        known = torch.utils._foreach_utils._get_fused_kernels_supported_devices()
        if not all(each.is_floating_point() and each.device.type in known for each in parameters):
            return f"{cls.__name__} has no fused variant for these parameters"
    return None


def _move_counts(optimizer: Any, fused: bool) -> list[tuple[Any, Any]]:
    """Moves step counts next to the parameters for fused kernels. Returns each changed state with its former count."""
    moved = []
    for parameter, state in optimizer.state.items():
        before = state.get("step") if isinstance(state, dict) else None
        if fused and isinstance(before, torch.Tensor):
            state["step"] = before.to(parameter.device, torch.float32, copy=True)
            moved.append((state, before))
    return moved


PACKAGES = (("bitsandbytes", "bitsandbytes.optim"), ("torchao", "torchao.optim"))
"""Package, and its module with Adam8bit and AdamW8bit."""
CLASSES = ("Adam", "AdamW")


class Optimizer8Bit(Applier):
    """Change to 8-bit optimizers. arguments: package (one of PACKAGES; else the first installed one)."""

    def install(self) -> None:
        """Replaces Adam and AdamW by classes that make 8-bit optimizers."""
        wanted = self.arguments.get("package")
        known = [pair for pair in PACKAGES if wanted in (None, pair[0])]
        found = next((pair for pair in known if importlib.util.find_spec(pair[0]) is not None), None)
        if found is None:
            self.detail = f"not installed: {' or '.join(name for name, _ in known) or wanted}"
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
            params, other = list(params), None
            try:
                other = change._make(original, name, params, args, kwargs)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: the job gets what it asked for
                pass_on(error)
                change.failed(error)
            return original(params, *args, **kwargs) if other is None else other

        # An object of another class from __new__: Python does not call this one's __init__.
        replacement = type(name, (original,), {"__new__": make, "__module__": original.__module__})
        return replacement

    def _make(self, original: Any, name: str, params: list[Any], args: Any, kwargs: Any) -> Any:
        group = params[0]["params"] if isinstance(params[0], dict) else params
        if not all(each.is_cuda for each in group):
            self.detail = "its kernels need a CUDA device"
            return None
        cls = getattr(importlib.import_module(self._module), f"{name}8bit")
        given = inspect.signature(original).bind(params, *args, **kwargs).arguments
        known = inspect.signature(cls).parameters
        made = cls(**{key: value for key, value in given.items() if key in known})
        self.applied = True
        self._class = cls
        self.detail = f"{cls.__module__}.{cls.__name__}"
        return made

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        if self.applied and isinstance(optimizer, self._class):
            self.exercised = True


class ZeroGrad(Applier):
    """Change that calls zero_grad with set_to_none=True. No arguments."""

    switchable = True
    detail = "the job does not ask for zeroed gradients"
    _calls = 0

    def prepare(self) -> None:

        def edit(bound: inspect.BoundArguments) -> None:
            if self.in_force and bound.arguments.get("set_to_none", True) is False:
                bound.arguments["set_to_none"] = True
                self._calls += 1

        for owner in (torch.optim.Optimizer, torch.nn.Module):
            owner.zero_grad = with_arguments(self, owner.zero_grad, edit)
        self.applied = True

    def boundary(self, steps: int) -> None:
        if self._calls:
            self.works(f"{count(self._calls, 'call')} of zero_grad changed")


Distributed = torch.nn.parallel.DistributedDataParallel


class FewerExchanges(Applier):
    """Change that exchanges gradients under DistributedDataParallel only in the last backward of an update. A job with
    its own no_sync stays the same. No arguments.

    The first update shows the number of backwards. An update that comes earlier (the rest of an epoch) exchanges its
    gradients explicitly, so that no rank ever updates with only its own."""

    detail = "no model is trained under DistributedDataParallel"
    _every = _backwards = _skipped = _total = 0
    _without_sync = _refused = False

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._models: list[Any] = []

    def top_module(self, module: torch.nn.Module) -> None:
        self._models += [each for each in module.modules() if isinstance(each, Distributed)]
        if self._models:
            self.detail = "no update has been made"

    def after_backward(self) -> None:
        """Sets whether the next backward exchanges gradients; its forward already reads that."""
        if not self._models or self._refused:
            return
        if not self._without_sync and not all(each.require_backward_grad_sync for each in self._models):
            self._refused, self.exercised = True, False
            self.detail = "the job uses no_sync() itself"
            return
        self._total += 1
        self._skipped += self._without_sync
        self._backwards += 1
        self._set(self._every > 1 and (self._backwards + 1) % self._every != 0)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Handles the first optimizer of a step; other optimizers see no backward since then."""
        if not self._backwards or self._refused:
            return
        if not self._every:
            self._every = self._backwards
        elif self._every > 1 and self._backwards % self._every:
            self._exchange()
        self._backwards = 0
        self._set(self._every > 1)

    def _set(self, quiet: bool) -> None:
        self._without_sync = quiet
        for model in self._models:
            model.require_backward_grad_sync = not quiet

    def _exchange(self) -> None:
        """Averages gradients over the ranks, as the last backward would have done."""
        for model in self._models:
            group = model.process_group
            for parameter in model.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad, group=group)
                    parameter.grad.div_(torch.distributed.get_world_size(group))

    def boundary(self, steps: int) -> None:
        if self._refused or not self._every:
            return
        if self._every == 1:
            self.detail = "each update has one backward pass, which must exchange its gradients"
            return
        self.applied = True
        self.exercised = self._skipped > 0
        self.detail = f"{self._skipped} of {self._total} backward passes without an exchange"


class DistributedSettings(Applier):
    """Change of the settings of DistributedDataParallel. arguments: arguments of its constructor."""

    detail = "the job makes no DistributedDataParallel"

    def install(self) -> None:

        def edit(bound: inspect.BoundArguments) -> None:
            if all(bound.arguments.get(name) == value for name, value in self.arguments.items()):
                self.detail = "the job already has this setting"
                return
            bound.arguments.update(self.arguments)
            self.applied = True

        Distributed.__init__ = with_arguments(self, Distributed.__init__, edit)

    def top_module(self, module: torch.nn.Module) -> None:
        if self.applied and isinstance(module, Distributed):
            self.works(", ".join(f"{name}={value}" for name, value in self.arguments.items()))


class ShardingSettings(Applier):
    """Change of the settings of a model sharded by fully_shard or FullyShardedDataParallel. arguments: keep, True: a
    block's parameters stay whole from its forward to its backward; prefetch, True: the next block's parameters are
    requested before this one computes, if a list holds the blocks in order."""

    detail = "the job shards no model"

    def install(self) -> None:
        from torch.distributed import fsdp

        if self.arguments.get("keep"):
            if hasattr(fsdp, "fully_shard"):  # torch 2.6
                keep = functools.partial(self._set, name="reshard_after_forward", value=False)
                fsdp.fully_shard = with_arguments(self, fsdp.fully_shard, keep)
            wrapper = fsdp.FullyShardedDataParallel
            wrapper.__init__ = with_arguments(self, wrapper.__init__, self._keep_wrapped)
        elif self.arguments.get("prefetch"):
            wrapper = fsdp.FullyShardedDataParallel
            wrapper.__init__ = with_arguments(
                self, wrapper.__init__, functools.partial(self._set, name="forward_prefetch", value=True)
            )

    def _keep_wrapped(self, bound: inspect.BoundArguments) -> None:
        from torch.distributed.fsdp import ShardingStrategy

        whole = {
            None: ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.FULL_SHARD: ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.HYBRID_SHARD: ShardingStrategy._HYBRID_SHARD_ZERO2,
        }
        given = bound.arguments.get("sharding_strategy")
        self._set(bound, "sharding_strategy", whole.get(given, given))

    def _set(self, bound: inspect.BoundArguments, name: str, value: Any) -> None:
        if bound.arguments.get(name) == value:
            self.detail = "the job already has this setting"
            return
        bound.arguments[name] = value
        self.applied = True

    def top_module(self, module: torch.nn.Module) -> None:
        from torch.distributed import fsdp

        sharded = getattr(fsdp, "FSDPModule", ())
        if self.arguments.get("prefetch"):
            for blocks in module.modules():
                ordered = isinstance(blocks, torch.nn.ModuleList | torch.nn.Sequential)
                listed = [each for each in blocks.children() if ordered and isinstance(each, sharded)]
                for block, following in itertools.pairwise(listed):
                    if getattr(block._get_fsdp_state(), "_states_to_forward_prefetch", None):
                        self.detail = "the job already has this setting"
                        return
                    block.set_modules_to_forward_prefetch([following])
                    self.applied = True
        parts = sum(isinstance(each, (sharded, fsdp.FullyShardedDataParallel)) for each in module.modules())
        if self.applied and parts:
            self.works(count(parts, "sharded module"))


class ShardedOptimizer(Optimizer8Bit):
    """Change to ZeroRedundancyOptimizer around Adam, AdamW and SGD: each rank keeps a part of the state."""

    detail = "the job makes no optimizer of torch.optim in several ranks"

    def install(self) -> None:
        """Replaces the optimizer classes by ones that make the sharded optimizer."""
        for name in ("Adam", "AdamW", "SGD"):
            setattr(torch.optim, name, self._replaced(name))

    def _make(self, original: Any, name: str, params: list[Any], args: Any, kwargs: Any) -> Any:
        if ranks() < 2:
            return None
        from torch.distributed.optim import ZeroRedundancyOptimizer

        given = inspect.signature(original).bind(params, *args, **kwargs).arguments
        words = {key: value for key, value in given.items() if key != "params"}
        made = ZeroRedundancyOptimizer(params, optimizer_class=original, **words)
        self.applied, self._class = True, ZeroRedundancyOptimizer
        self.detail = f"state of {name} over {ranks()} ranks"
        return made


class ShardedModel(Applier):
    """Change from DistributedDataParallel to fully_shard. It shards the model by the blocks of its lists, and so its
    gradients and the state of an optimizer that is made after it."""

    detail = "the job makes no DistributedDataParallel in several ranks"

    def install(self) -> None:
        self._sharded: SideTable[bool] = SideTable()
        applier = self

        def make(cls: type, *args: Any, **kwargs: Any) -> Any:
            module = kwargs.get("module", args[0] if args else None)
            if cls is not Distributed or ranks() < 2 or not isinstance(module, torch.nn.Module):
                return object.__new__(cls)
            try:
                applier._shard(module)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: the variant then fails, and says why
                pass_on(error)
                applier.failed(error)
                return object.__new__(cls)
            return module  # of another class: Python calls no __init__

        Distributed.__new__ = make

    def _shard(self, module: torch.nn.Module) -> None:
        from torch.distributed.fsdp import fully_shard

        for tensor in (*module.parameters(), *module.buffers()):  # as the wrapper does
            distributed.broadcast(tensor.detach(), 0)
        lists = [each for each in module.modules() if isinstance(each, torch.nn.ModuleList | torch.nn.Sequential)]
        children = (block for each in lists if each is not module for block in each if [*block.parameters()])
        blocks = [*dict.fromkeys(children)][::-1]  # the inner ones first
        for block in blocks:
            fully_shard(block)
        fully_shard(module)
        type(module).module = property(lambda own: own)  # fully_shard's own class
        for parameter in module.parameters():
            self._sharded.keep(parameter, True)
        self.applied, self.detail = True, f"{count(len(blocks) + 1, 'part')} over {ranks()} ranks"

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Checks that the optimizer updates the sharded parameters, not those that existed before."""
        if self.applied and not self.exercised:
            own = [each for group in optimizer.param_groups for each in group["params"]]
            self.exercised = any(self._sharded.of(each) for each in own)
            self.detail = self.detail if self.exercised else "the optimizer was made before the model was sharded"
