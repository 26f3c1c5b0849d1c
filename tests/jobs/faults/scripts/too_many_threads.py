"""Eight threads compute on few CPUs; healthy: one."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=100)
arguments = parser.parse_args()
torch.manual_seed(0)

torch.set_num_threads(1 if arguments.healthy else 4 * len(os.sched_getaffinity(0)))  # fault
images = torch.randn(64, 128, 512)
labels = torch.randint(10, (64, 128))
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for step in range(arguments.steps):
    loss = criterion(model(images[step % 64]), labels[step % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
