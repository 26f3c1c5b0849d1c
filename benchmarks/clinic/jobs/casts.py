"""Activations go to double and back for no reason; healthy: they stay as they are. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)


class Careful(nn.Module):
    def forward(self, x):
        for _ in range(amount):
            x = x.double().float()  # fault
        return torch.relu(x)


model = nn.Sequential(nn.Linear(256, 2048), Careful(), nn.Linear(2048, 256), Careful(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(8, 256, 256), torch.randint(10, (8, 256))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 8]), labels[step % 8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
