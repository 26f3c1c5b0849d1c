"""Gradients are summed over ranks for each micro-batch of an accumulated step; healthy: only for the last."""

import contextlib
import time

import torch
import torch.distributed as dist
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(8, 64, 256)
MICRO_BATCHES = 8
for _step in range(steps):
    for micro in range(MICRO_BATCHES):
        silent = micro < MICRO_BATCHES - 1 - amount
        with model.no_sync() if silent else contextlib.nullcontext():
            model(data[micro]).square().mean().backward()  # fault
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        lap()
dist.destroy_process_group()
time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)
