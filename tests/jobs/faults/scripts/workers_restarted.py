"""Short epochs start their workers anew each time; healthy: persistent workers."""

import argparse
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=160)
arguments = parser.parse_args()
torch.manual_seed(0)


class Images(Dataset):
    """Compressed rows, 1024 of them: eight batches an epoch."""

    def __init__(self):
        pixels = torch.randint(256, (1024, 128), dtype=torch.uint8)
        self.rows = [zlib.compress(bytes(row.tolist())) for row in pixels]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor([value / 255 for value in zlib.decompress(self.rows[index])]), index % 10


model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(  # fault
    Images(), batch_size=128, num_workers=1, persistent_workers=arguments.healthy
)
done = 0
while done < arguments.steps:
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        done += 1
