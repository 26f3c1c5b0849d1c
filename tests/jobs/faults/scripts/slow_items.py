"""Items are decoded in pure Python, in the training process; healthy: they were decoded once."""

import argparse
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)


class Images(Dataset):
    """Compressed rows; 128 to a batch."""

    def __init__(self):
        pixels = torch.randint(256, (2048, 512), dtype=torch.uint8)
        self.rows = [zlib.compress(bytes(row.tolist())) for row in pixels]
        self.decoded = [self.decode(row) for row in self.rows] if arguments.healthy else None

    def decode(self, row):
        return torch.tensor([value / 255 for value in zlib.decompress(row)])  # fault: one worker would hide it

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.decoded is not None:
            return self.decoded[index], index % 10
        return self.decode(self.rows[index]), index % 10  # fault: it calls that


model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(Images(), batch_size=128, shuffle=True, drop_last=True)
done = 0
while done < arguments.steps:
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        done += 1
