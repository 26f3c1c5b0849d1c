"""Two ranks, one of which prepares more than the other; healthy: both the same. DDP under torchrun."""

import time

import numpy as np
import torch
import torch.distributed as dist
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
noise = np.random.default_rng(rank).normal(size=(256, 256)).astype(np.float32)


def prepare():
    for _ in range(amount * (rank == 1)):
        np.sort(noise, axis=0)  # fault
    return torch.from_numpy(noise)


for _ in range(steps):
    loss = model(prepare()).square().mean()  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        lap()
dist.destroy_process_group()
time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)
