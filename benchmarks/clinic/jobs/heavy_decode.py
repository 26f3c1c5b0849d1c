"""Items are compressed and decoded by the training process; healthy: decoded once, before. Plain loop with a loader."""

import zlib

import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Images(Dataset):
    """Compressed pictures of 32 x 32."""

    def __init__(self):
        pictures = np.random.default_rng(0).integers(0, 60, (1024, 3, 32, 32), dtype=np.uint8)
        self.files = [zlib.compress(picture.tobytes()) for picture in pictures]
        self.pictures = torch.from_numpy(pictures).float() / 255

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        if not amount:
            return self.pictures[index], index % 10
        for _ in range(amount):
            picture = np.frombuffer(zlib.decompress(self.files[index]), np.uint8)  # fault
        return torch.from_numpy(picture.reshape(3, 32, 32).copy()).float() / 255, index % 10


model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 225, 2048), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Images(), batch_size=24, shuffle=True)  # fault
done = 0
while done < steps:
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        lap()
        done += 1
