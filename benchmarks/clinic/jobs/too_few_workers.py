"""One worker for items that are slow to make, while a second CPU idles; healthy: quick items and none."""

import zlib

import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Clips(Dataset):
    """Clips to unpack."""

    def __init__(self):
        clip = np.random.default_rng(0).integers(0, 60, 4096, dtype=np.uint8)
        self.packed = zlib.compress(clip.tobytes())

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        for _ in range(max(amount, 1)):
            clip = np.frombuffer(zlib.decompress(self.packed), np.uint8)  # fault
        return torch.from_numpy(clip[:512].astype(np.float32)), index % 10


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Clips(), batch_size=32, num_workers=min(amount, 1), persistent_workers=amount > 0)  # fault
    done = 0
    while done < steps:
        for clips, labels in loader:
            loss = nn.functional.cross_entropy(model(clips), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            lap()
            done += 1
            if done == steps:
                break
