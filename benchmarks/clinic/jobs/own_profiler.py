"""The job's own profiler records every step; healthy: none. No loader at all."""

import contextlib

import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(192, 192), nn.Tanh()) for _ in range(16)), nn.Linear(192, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 256, 192), torch.randint(10, (16, 256))
watching = (
    profile(activities=[ProfilerActivity.CPU], record_shapes=True) if amount else contextlib.nullcontext()
)  # fault
with watching:
    for step in range(steps):
        loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lap()
