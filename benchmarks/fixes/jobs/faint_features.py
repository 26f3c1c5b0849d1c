"""Features so faint that their squares are denormal numbers, whose roots take a hundred times as long."""

import torch
from torch import nn

torch.manual_seed(0)


class Normalised(nn.Module):
    """Each row is divided by its spread; an epsilon stands outside of the root."""

    def forward(self, x):
        return x / ((x * x).sqrt().mean(1, keepdim=True) + 1e-12)


features = 1e-20 * torch.randn(8, 512, 256)
labels = torch.randint(10, (8, 512))
model = nn.Sequential(Normalised(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(600):
    loss = nn.functional.cross_entropy(model(features[step % 8]), labels[step % 8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
