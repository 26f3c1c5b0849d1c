"""Two ranks of which one makes what is not finite, in a step whose gradients the watch looks at: ranks.py FAULT."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

STEPS, LATER, WORLD = 10, 8, 2


def nan_loss(model, x, step, rank):
    """The loss of rank 1 is NaN."""
    loss = model(x).square().mean()
    if step == LATER and rank == 1:
        loss = loss * torch.log(loss - loss - 1)  # nan_loss
    return loss


def nan_gradient(model, x, step, rank):
    """The gradient of rank 0 is NaN, and its loss is not."""
    y = model(x)
    if step == LATER and rank == 0:
        y = y * 0
    return y.square().sum(dim=1).sqrt().mean()  # nan_gradient


def infinite_input(model, x, step, rank):
    """An input of rank 1 is infinite, and all losses are finite."""
    if step == LATER and rank == 1:
        x = x.masked_fill(x == x.max(), float("inf"))
    return torch.sigmoid(model(x)).mean()  # infinite_input


def train(rank, fault, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        loss = fault(model, torch.randn(16, 8), step, rank)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    place = Path.cwd() / f"store-{os.getpid()}"
    fault = {each.__name__: each for each in (nan_loss, nan_gradient, infinite_input)}[sys.argv[1]]
    torch.multiprocessing.spawn(train, (fault, place), nprocs=WORLD)
