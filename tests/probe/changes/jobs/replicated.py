"""A model that DistributedDataParallel keeps in two ranks, whose weights differ before; 40 steps in every rank.
"early": its optimizer is made before the wrapper."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def elements(tensors):
    """Elements that this rank holds."""
    return sum(getattr(each, "to_local", lambda each=each: each)().numel() for each in tensors)


def main():
    """One rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    blocks = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    net = torch.nn.Sequential(blocks, torch.nn.Tanh(), torch.nn.Linear(16, 1))
    early = torch.optim.AdamW(net.parameters(), lr=0.05) if "early" in sys.argv else None
    model = DistributedDataParallel(net)
    optimizer = early or torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        state = getattr(optimizer, "optim", optimizer).state.values()
        held = {"state": sum(elements(each.values()) for each in state), "weights": elements(model.module.parameters())}
        print("SEEN " + json.dumps(held))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
