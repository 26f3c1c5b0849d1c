"""AdamW updates 160 tensors one by one; healthy: fused."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

layers = [nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 96), nn.ReLU()) for _ in range(40)]
model = nn.Sequential(*layers, nn.Linear(96, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=arguments.healthy)  # fault
batches = torch.randn(16, 256, 96)
labels = torch.randint(10, (16, 256))
for step in range(arguments.steps):
    loss = nn.functional.cross_entropy(model(batches[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
