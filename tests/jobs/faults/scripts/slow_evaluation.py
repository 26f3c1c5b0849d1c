"""A large validation set is evaluated every ten steps; healthy: a small one, rarely."""

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
for step in range(arguments.steps):
    loss = criterion(model(images[step % 64]), labels[step % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % (100 if arguments.healthy else 10) == 9:
        model.eval()
        with torch.no_grad():
            for number in range(2 if arguments.healthy else 32):
                criterion(model(images[number]), labels[number])  # fault
        model.train()
