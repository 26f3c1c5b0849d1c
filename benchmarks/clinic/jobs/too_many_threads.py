"""Far more threads than CPUs; healthy: as many as CPUs. No loader at all."""

import os

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(8 * amount or len(os.sched_getaffinity(0)))  # fault
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 128, 512), torch.randint(10, (16, 128))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
