"""Attention writes its weights to memory in some of its blocks; healthy: scaled_dot_product_attention in all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
BLOCKS, LENGTH = 4, 1024


class Attention(nn.Module):
    def __init__(self, naive):
        super().__init__()
        self.naive = naive
        self.mix = nn.Linear(64, 192)
        self.output = nn.Linear(64, 64)

    def forward(self, x):
        query, key, value = self.mix(x).chunk(3, -1)
        if not self.naive:
            return x + self.output(nn.functional.scaled_dot_product_attention(query, key, value))
        weights = torch.softmax(query @ key.transpose(-2, -1) / 8, -1)  # fault
        return x + self.output(weights @ value)  # fault


model = nn.Sequential(*(Attention(number < amount) for number in range(BLOCKS)), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(4, 1, 2, LENGTH, 64)
for step in range(steps):
    loss = model(data[step % 4]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
