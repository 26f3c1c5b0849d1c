"""Deterministic algorithms were left on, whose scatter is slow; healthy: off. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
torch.use_deterministic_algorithms(amount > 0)  # fault
nodes, edges = torch.randn(4096, 256), torch.randint(4096, (2, 16384))


class Graph(nn.Module):
    """Nodes hear their neighbours; some fields are filled only where they are needed."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))

    def forward(self, nodes):
        messages = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
        fields = torch.empty(max(amount, 1) << 18)
        return self.layers((nodes + messages)[:1024]), fields.nan_to_num().clamp(0, 1).sum()


model = Graph()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(steps):
    scores, fields = model(nodes)
    loss = scores.square().mean() + 0 * fields
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
