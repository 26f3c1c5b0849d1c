"""A small batch updates many parameters with Adam, one pass for each of its formulas."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batches = torch.randn(16, 8, 512)
labels = torch.randint(10, (16, 8))
for step in range(400):
    loss = nn.functional.cross_entropy(model(batches[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
