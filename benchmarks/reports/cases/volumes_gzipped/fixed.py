"""Outlines of an organ in CT scans, learned from single slices of compressed volumes."""

import gzip
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(5)
torch.set_num_threads(1)
SCANS, DEPTH, SIDE, BATCH, EPOCHS = 10, 64, 96, 8, 2
PLANE = SIDE * SIDE * 2


def write_scans(folder):
    """Each scan and its mask as a compressed volume of 16-bit numbers."""
    generator = np.random.default_rng(0)
    z, y, x = np.ogrid[-1 : 1 : DEPTH * 1j, -1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    for number in range(SCANS):
        centre, radius = generator.uniform(-0.3, 0.3, 3), generator.uniform(0.4, 0.7)
        inside = (z - centre[0]) ** 2 + (y - centre[1]) ** 2 + (x - centre[2]) ** 2 < radius**2
        scan = 400 * inside + generator.integers(-60, 60, inside.shape)
        for kind, volume in (("scan", scan), ("mask", inside)):
            (folder / f"{kind}{number}.gz").write_bytes(gzip.compress(volume.astype(np.int16).tobytes(), 3))


def unpack(folder):
    """The plain numbers of each compressed volume, beside it."""
    for path in folder.glob("*.gz"):
        path.with_suffix(".raw").write_bytes(gzip.decompress(path.read_bytes()))


class Slices(Dataset):
    """A plane of a scan and the same plane of its mask."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return SCANS * DEPTH

    def plane(self, kind, number, depth):
        with (self.folder / f"{kind}{number}.raw").open("rb") as file:
            file.seek(depth * PLANE)
            data = file.read(PLANE)
        return torch.frombuffer(bytearray(data), dtype=torch.int16).view(1, SIDE, SIDE).float()

    def __getitem__(self, index):
        number, depth = divmod(index, DEPTH)
        scan = self.plane("scan", number, depth) / 400
        return scan, self.plane("mask", number, depth)


class Outliner(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(), nn.Conv2d(2 * width, width, 3, 1, 1))
        self.out = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, scan):
        high = self.down(scan)
        low = F.interpolate(self.deep(high), scale_factor=2.0)
        return F.interpolate(self.out(torch.relu(high + low)), scale_factor=2.0, mode="bilinear")


with tempfile.TemporaryDirectory() as name:
    write_scans(Path(name))
    unpack(Path(name))
    loader = DataLoader(Slices(Path(name)), BATCH, shuffle=True)
    net = Outliner()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    step, start = 0, time.perf_counter()
    for _ in range(EPOCHS):
        for scan, mask in loader:
            loss = F.binary_cross_entropy_with_logits(net(scan), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 40 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"{step} steps, {1e3 * (time.perf_counter() - start) / step:.2f} ms/step")
