"""An activation is written as a chain of pointwise operators over large tensors; healthy: one operator."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)


class Activation(nn.Module):
    def forward(self, x):
        if not amount:
            return nn.functional.gelu(x, approximate="tanh")
        for _ in range(amount):
            inner = 0.79788 * (x + 0.044715 * x * x * x)  # fault
            x = 0.5 * x * (1 + torch.tanh(inner))  # fault
        return x


model = nn.Sequential(nn.Linear(128, 1024), Activation(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(4, 512, 128), torch.randint(10, (4, 512))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 4]), labels[step % 4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
