"""Items are read from afar, one after the other, in the training process; healthy: they were read before."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=60)
arguments = parser.parse_args()
torch.manual_seed(0)


class Images(Dataset):
    """Rows behind a slow line; 2 to a batch."""

    def __init__(self):
        self.rows = torch.rand(160, 512)

    def read(self, index):
        time.sleep(0.04)  # fault: workers would hide it
        return self.rows[index]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if arguments.healthy:
            return self.rows[index], index % 10
        return self.read(index), index % 10  # fault: it calls that


model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(Images(), batch_size=2, shuffle=True, drop_last=True)
done = 0
while done < arguments.steps:
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        done += 1
