"""Deterministic algorithms slow scatters down; healthy: they are off."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

torch.use_deterministic_algorithms(not arguments.healthy)  # fault
nodes = torch.randn(4000, 64)
edges = torch.randint(4000, (2, 40_000))
target = torch.randn(4000, 64)
encode, decode = nn.Linear(64, 64), nn.Linear(64, 64)
optimizer = torch.optim.SGD([*encode.parameters(), *decode.parameters()], lr=0.01)
for _ in range(arguments.steps):
    messages = encode(nodes)[edges[0]]
    gathered = torch.zeros(4000, 64).index_add(0, edges[1], messages)
    loss = (decode(gathered) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
