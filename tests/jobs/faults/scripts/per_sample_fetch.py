"""A tensor in memory is read sample by sample; healthy: whole batches are indexed."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=640)
arguments = parser.parse_args()
torch.manual_seed(0)

features = torch.randn(16384, 64)
labels = torch.randint(10, (16384,))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()


def batches():
    if arguments.healthy:
        order = torch.randperm(len(features))
        return ((features[index], labels[index]) for index in order.split(1024))
    return loader


loader = DataLoader(TensorDataset(features, labels), batch_size=1024, shuffle=True)  # fault
done = 0
while done < arguments.steps:
    for batch, targets in batches():
        optimizer.zero_grad()
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        done += 1
