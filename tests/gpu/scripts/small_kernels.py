"""A batch so small that the host cannot launch as fast as the device computes; healthy: a large one."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
rows = 65_536 if arguments.healthy else 8
blocks = [layer for _ in range(24) for layer in (nn.Linear(512, 512), nn.GELU())]
model = nn.Sequential(*blocks, nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(rows, 512, device="cuda"), torch.randint(10, (rows,), device="cuda")
for _ in range(300):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
