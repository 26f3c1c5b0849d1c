"""Every block is checkpointed; healthy: none."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(384, 768), nn.ReLU(), nn.Linear(768, 384)) for _ in range(4)
        )
        self.output = nn.Linear(384, 10)

    def forward(self, x):
        for block in self.blocks:
            if arguments.healthy:
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=False)  # fault
        return self.output(x)


model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.randn(16, 128, 384)
labels = torch.randint(10, (16, 128))
for step in range(arguments.steps):
    loss = nn.functional.cross_entropy(model(batches[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
