"""Attention writes its weights to memory; healthy: scaled_dot_product_attention. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
LENGTH = 128 * max(amount, 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 192)
        self.output = nn.Linear(64, 64)

    def forward(self, x):
        query, key, value = self.mix(x).chunk(3, -1)
        if not amount:
            return self.output(nn.functional.scaled_dot_product_attention(query, key, value))
        weights = torch.softmax(query @ key.transpose(-2, -1) / 8, -1)  # fault
        return self.output(weights @ value)  # fault


model = nn.Sequential(nn.Linear(64, 64), Attention(), nn.ReLU(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(4, 8, LENGTH, 64)
for step in range(steps):
    loss = model(data[step % 4]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
