"""The model is saved every second step; healthy: once."""

import argparse
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
path = tempfile.mkdtemp() + "/model.pt"
for step in range(arguments.steps):
    loss = criterion(model(images[step % 64]), labels[step % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % (1000 if arguments.healthy else 2) == 1:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)  # fault
