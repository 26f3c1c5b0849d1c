"""A small batch updates many parameters with Adam; healthy: a batch that is worth the update."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

size = 1024 if arguments.healthy else 8
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-4)  # fault
batches = torch.randn(16, size, 512)
labels = torch.randint(10, (16, size))
for step in range(arguments.steps):
    loss = nn.functional.cross_entropy(model(batches[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
