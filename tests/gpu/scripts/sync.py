"""A running loss is read in every step; healthy: it stays on the device until the end."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
blocks = [layer for _ in range(24) for layer in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())]
model = nn.Sequential(*blocks, nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(256, 512, device="cuda"), torch.randint(10, (256,), device="cuda")
running, kept = 0.0, torch.zeros((), device="cuda")
for _ in range(300):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if arguments.healthy:
        kept += loss.detach()
    else:
        running += loss.item()  # fault
print(running, kept.item())
