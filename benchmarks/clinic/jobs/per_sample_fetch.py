"""A data set in memory is read sample by sample; healthy: whole batches by `__getitems__`. Plain loop with a loader."""

import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Table(Dataset):
    """Rows of features, normalised when they are read."""

    def __init__(self):
        self.features = torch.randn(4096, 512)
        self.mean, self.scale = self.features.mean(0), self.features.std(0)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        row = self.features[index]  # fault
        for _ in range(amount):
            row = (row - self.mean) / self.scale  # fault
        return row, index % 10


class TableAtOnce(Table):
    """The same by batch."""

    def __getitems__(self, indices):
        rows = (self.features[indices] - self.mean) / self.scale
        return rows, torch.tensor(indices) % 10


table = Table() if amount else TableAtOnce()
loader = DataLoader(table, batch_size=32, shuffle=True, collate_fn=None if amount else lambda batch: batch)  # fault
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
done = 0
while done < steps:
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lap()
        done += 1
