"""Items are so expensive that no number of workers helps on this machine; healthy: they were made once, for a larger
model next to which collating them is nothing."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=64)
arguments = parser.parse_args()
torch.manual_seed(0)


class Signals(Dataset):
    """Each item is smoothed in pure Python."""

    def __init__(self):
        self.rows = torch.randn(1024, 512).tolist()
        self.ready = [self.smooth(row) for row in self.rows] if arguments.healthy else None

    def smooth(self, row):
        for _ in range(12):
            row = [0.5 * left + 0.5 * right for left, right in zip(row, row[1:] + row[:1])]  # fault
        return torch.tensor(row)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.ready is not None:
            return self.ready[index], index % 10
        return self.smooth(self.rows[index]), index % 10


width = 2048 if arguments.healthy else 1024
model = nn.Sequential(nn.Linear(512, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
workers = 0 if arguments.healthy else len(os.sched_getaffinity(0))
loader = DataLoader(Signals(), batch_size=128, num_workers=workers, persistent_workers=workers > 0)
done = 0
while done < arguments.steps:
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        done += 1
