"""An activation is written as its formula, on large tensors; healthy: the ready-made one on fewer bytes."""

import argparse
import math

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=60)
arguments = parser.parse_args()
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.expand = nn.Linear(128, 1024)
        self.reduce = nn.Linear(1024, 128)

    def forward(self, x):
        x = self.expand(x)
        if arguments.healthy:
            x = torch.relu(x)
        else:
            x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))  # fault
        return self.reduce(x)


model = nn.Sequential(Block(), Block())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batches = torch.randn(8, 1024, 128)
for step in range(arguments.steps):
    batch = batches[step % 8]
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
