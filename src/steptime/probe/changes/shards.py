"""Changes that split over the ranks what DistributedDataParallel keeps in each."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from steptime.probe.changes.applier import Applier, count
from steptime.probe.changes.updates import Optimizer8Bit
from steptime.probe.objects import SideTable
from steptime.probe.ours import pass_on


def ranks() -> int:
    """Number of ranks of the job's default group, 1 before it has joined one."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class ShardedOptimizer(Optimizer8Bit):
    """ZeroRedundancyOptimizer around Adam, AdamW and SGD: each rank keeps the state of its part of the parameters."""

    detail = "the job makes no optimizer of torch.optim in several ranks"

    def install(self) -> None:
        """Replaces the classes by ones that make the sharded one."""
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
    """fully_shard in place of DistributedDataParallel: the model, by the blocks of its lists, and so its gradients and
    the state of an optimizer that is made after it."""

    detail = "the job makes no DistributedDataParallel in several ranks"

    def install(self) -> None:
        self._sharded: SideTable[bool] = SideTable()
        applier = self

        def make(cls: type, *args: Any, **kwargs: Any) -> Any:
            module = kwargs.get("module", args[0] if args else None)
            if cls is not DistributedDataParallel or ranks() < 2 or not isinstance(module, torch.nn.Module):
                return object.__new__(cls)
            try:
                applier._shard(module)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: the variant then fails, and says why
                pass_on(error)
                applier.failed(error)
                return object.__new__(cls)
            return module  # of another class: Python calls no __init__

        DistributedDataParallel.__new__ = make

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
        """Checks that the optimizer moves the sharded parameters, not those that were there before."""
        if self.applied and not self.exercised:
            own = [each for group in optimizer.param_groups for each in group["params"]]
            self.exercised = any(self._sharded.of(each) for each in own)
            self.detail = self.detail if self.exercised else "the optimizer was made before the model was sharded"
