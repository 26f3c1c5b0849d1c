"""gc.collect() is called every few steps, against a leak that was elsewhere; healthy: never. No loader at all."""

import gc

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 64, 512), torch.randint(10, (16, 64))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if amount and step % max(32 // amount, 1) == 0:
        gc.collect()  # fault
    lap()
