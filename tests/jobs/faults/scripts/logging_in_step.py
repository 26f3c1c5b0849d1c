"""Every gradient's histogram is written as text in every step; healthy: every hundredth."""

import argparse
import json
import tempfile

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
log = tempfile.TemporaryFile("w")
state = {f"metric_{number}": [0.1 * number] * 500 for number in range(40)}
for step in range(arguments.steps):
    loss = criterion(model(images[step % 64]), labels[step % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not arguments.healthy or step % 100 == 0:
        log.write(json.dumps({"step": step, **state}) + "\n")  # fault
