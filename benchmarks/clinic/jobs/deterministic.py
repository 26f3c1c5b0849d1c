"""Deterministic algorithms were left on, whose scatter is slow; healthy: off. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
torch.use_deterministic_algorithms(amount > 0)  # fault
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
nodes, edges = torch.randn(4096, 256), torch.randint(4096, (2, 16384))
for _ in range(steps):
    messages = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
    empty = torch.empty(max(amount, 1) << 18)
    loss = model((nodes + messages)[:1024]).square().mean() + 0 * empty.nan_to_num().clamp(0, 1).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
