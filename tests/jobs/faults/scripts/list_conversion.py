"""A batch is made by torch.tensor from a list of rows; healthy: from one array."""

import argparse
import random

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

random.seed(0)
data = torch.randn(4096, 512)
rows = data.tolist()
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

for _ in range(arguments.steps):
    chosen = random.sample(range(4096), 128)
    if arguments.healthy:
        batch = data[chosen]
    else:
        batch = torch.tensor([rows[i] for i in chosen])  # fault
    targets = torch.tensor([i % 10 for i in chosen])
    loss = criterion(model(batch), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
