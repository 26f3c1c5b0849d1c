"""Yields of fields from histograms, one archive for all of them."""
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def make(folder, count):
    rng = np.random.default_rng(0)
    path = folder / "fields.npz"
    np.savez(path, images=rng.random((count, 32, 24), dtype=np.float32), yields=rng.random(count, dtype=np.float32))
    return path


class Fields(Dataset):
    def __init__(self, path, count):
        self.path, self.count = path, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        data = np.load(self.path)  # culprit-too
        image = data["images"][i]  # culprit
        return torch.from_numpy(image).flatten(), torch.tensor(data["yields"][i])


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Fields(make(Path(folder), 1500), 1500), batch_size=16, shuffle=True)
        net = nn.Sequential(nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
