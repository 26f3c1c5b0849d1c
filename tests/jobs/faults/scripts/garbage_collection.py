"""gc.collect() in every step, with many objects alive; healthy: never."""

import argparse
import gc

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
samples = [{"name": str(number), "label": [number]} for number in range(60_000)]
for step in range(arguments.steps):
    loss = criterion(model(images[step % 64]), labels[step % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not arguments.healthy:
        gc.collect()  # fault
