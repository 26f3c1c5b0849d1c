"""Cheap items go through two workers; healthy: none."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=1200)
arguments = parser.parse_args()
torch.manual_seed(0)


class Rows(Dataset):
    """Rows of a matrix that is in memory as a list of tensors."""

    def __init__(self):
        self.rows = list(torch.randn(8192, 64))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], index % 10


model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
workers = 0 if arguments.healthy else 2
loader = DataLoader(Rows(), batch_size=64, num_workers=workers, persistent_workers=workers > 0)  # fault
done = 0
while done < arguments.steps:
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        done += 1
