"""A compiled model meets a new length at every few steps, with dynamic shapes off; healthy: one length."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
torch._dynamo.config.recompile_limit = 1024
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 10))
compiled = torch.compile(model, backend="aot_eager", dynamic=False)  # fault
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(8, 1024, 256), torch.randint(10, (8, 1024))
for step in range(steps):
    length = 256 + (step // max(24 // amount, 1) if amount else 0)
    loss = nn.functional.cross_entropy(compiled(data[step % 8, :length]), labels[step % 8, :length])  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
