"""Activations sink into denormal numbers, on which the processor is slow; healthy: they are flushed to zero."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
torch.set_flush_denormal(not amount)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(8, 128, 256)
faint = torch.full((64 * max(amount, 1), 1024), 1e-39)
for step in range(steps):
    traces = faint * 0.5 + faint * 0.25  # fault
    loss = model(data[step % 8]).square().mean() + traces.sum() * 0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
