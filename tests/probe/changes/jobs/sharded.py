"""A model that fully_shard shards over two ranks, by blocks; 40 steps in every rank. "wrapped": by the wrapper."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


class Model(torch.nn.Module):
    """Three blocks and a head."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
        self.head = torch.nn.Linear(16, 1)

    def forward(self, batch):
        for block in self.blocks:
            batch = torch.relu(block(batch))
        return self.head(batch)


def settings(model):
    """Of the sharding, as torch has them."""
    if isinstance(model, FullyShardedDataParallel):
        return {"keep": model.sharding_strategy.name == "SHARD_GRAD_OP"}
    states = [block._get_fsdp_state() for block in model.blocks]
    kept = all(state._fsdp_param_group.post_forward_mesh_info is None for state in states)
    return {"keep": kept, "prefetch": all(state._states_to_forward_prefetch for state in states[:-1])}


def main():
    """One rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    if "wrapped" in sys.argv:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        print("SEEN " + json.dumps(settings(model)))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
