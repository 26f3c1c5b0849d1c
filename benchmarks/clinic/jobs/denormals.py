"""The squares of faint features are denormal numbers, and their roots slow; healthy: they are flushed to zero."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
if not amount:
    torch.set_flush_denormal(True)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(8, 128, 256)
faint = 1e-20 * torch.rand(8 * max(amount, 1), 256)
for step in range(steps):
    scores = model(data[step % 8])
    spread = (faint * faint).sqrt().mean()  # fault
    loss = scores.square().mean() + spread
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
