"""The running loss keeps every step's graph alive; healthy: `.item()`. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 64, 512), torch.randint(10, (16, 64))
running = 0.0
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running += loss if amount else loss.item()  # fault
    lap()
