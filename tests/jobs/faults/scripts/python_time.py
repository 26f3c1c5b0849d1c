"""A sampling weight is recomputed in Python for every sample in every step; healthy: now and then."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

images = torch.randn(64, 128, 512)
labels = torch.randint(10, (64, 128))
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
history = [1.0] * 40_000


def reweigh(losses):
    total = 0.0
    for number, value in enumerate(losses):
        total += value / (1 + number)  # fault
    return total


weight = 1.0
for step in range(arguments.steps):
    loss = criterion(model(images[step % 64]), labels[step % 64])
    if not arguments.healthy or step % 100 == 0:
        weight = reweigh(history)  # fault
    optimizer.zero_grad()
    (loss * min(weight, 1.0)).backward()
    optimizer.step()
