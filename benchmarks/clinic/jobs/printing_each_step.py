"""A progress line with many figures is printed at each step; healthy: none. Gradient accumulation of two."""

import sys

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data, labels = torch.randn(16, 32, 512), torch.randint(10, (16, 32))
for step in range(steps):
    for half in range(2):
        scores = model(data[(2 * step + half) % 16])
        loss = nn.functional.cross_entropy(scores, labels[(2 * step + half) % 16]) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    for _ in range(amount):
        print(f"step {step}", *(f"{value:.3f}" for row in scores.detach() for value in row), file=sys.stderr)  # fault
    lap()
