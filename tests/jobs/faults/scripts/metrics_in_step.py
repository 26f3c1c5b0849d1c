"""Accuracy is counted sample by sample in Python; healthy: one comparison of tensors."""

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
correct = 0
for step in range(arguments.steps):
    targets = labels[step % 64]
    output = model(images[step % 64])
    loss = criterion(output, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if arguments.healthy:
        correct += int((output.topk(3).indices == targets[:, None]).sum())
    else:
        correct += sum(targets[i].item() in output[i].topk(3).indices.tolist() for i in range(len(targets)))  # fault
