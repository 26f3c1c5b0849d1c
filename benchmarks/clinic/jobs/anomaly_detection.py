"""Autograd's anomaly detection was left on; healthy: off. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(amount > 0)  # fault
model = nn.Sequential(*(nn.Sequential(nn.Linear(192, 192), nn.Tanh()) for _ in range(16)), nn.Linear(192, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 256, 192), torch.randint(10, (16, 256))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
