"""Rows are taken from a pandas frame one by one; healthy: from an array made once. Plain loop with a loader."""

import numpy as np
import pandas
import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
COLUMNS = 64


class Customers(Dataset):
    """A table of customers."""

    def __init__(self):
        values = np.random.default_rng(0).normal(size=(4096, COLUMNS)).astype(np.float32)
        self.frame = pandas.DataFrame(values, columns=[f"feature_{i}" for i in range(COLUMNS)])
        self.values = torch.from_numpy(values)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        if not amount:
            return self.values[index], index % 2
        for _ in range(amount):
            row = self.frame.iloc[index].to_numpy()  # fault
        return torch.from_numpy(row.copy()), index % 2


model = nn.Sequential(nn.Linear(COLUMNS, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Customers(), batch_size=32, shuffle=True)  # fault
done = 0
while done < steps:
    for features, bought in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), bought)
        loss.backward()
        optimizer.step()
        lap()
        done += 1
