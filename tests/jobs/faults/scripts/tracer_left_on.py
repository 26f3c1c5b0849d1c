"""tracemalloc was left on; healthy: off."""

import argparse
import tracemalloc

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

if not arguments.healthy:
    tracemalloc.start(25)  # fault
features = torch.randn(64, 32)
labels = torch.randint(4, (64,))
layers = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(30)]
model = nn.Sequential(*layers, nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for _ in range(arguments.steps):
    loss = nn.functional.cross_entropy(model(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
