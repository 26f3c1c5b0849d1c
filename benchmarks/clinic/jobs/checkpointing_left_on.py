"""Blocks are checkpointed though memory is to spare; healthy: none. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
BLOCKS = 8


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)) for _ in range(BLOCKS)
        )
        self.output = nn.Linear(256, 10)

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = x + (checkpoint(block, x, use_reentrant=False) if number < amount else block(x))  # fault
        return self.output(x)


model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 128, 256), torch.randint(10, (16, 128))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
