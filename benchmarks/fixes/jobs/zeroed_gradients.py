"""Gradients of a large model are filled with zeros, and then added to, next to a small batch."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
batches = torch.randn(16, 4, 512)
labels = torch.randint(10, (16, 4))
for step in range(400):
    loss = nn.functional.cross_entropy(model(batches[step % 16]), labels[step % 16])
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
