"""Key points of objects; the packed pictures lie in a store on the network and are unpacked when they are asked for."""

import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, SMALL, POINTS, PICTURES, BATCH, EPOCHS, ROUND_TRIP = 96, 32, 6, 480, 16, 8, 0.003


def pack(picture):
    """Rows as differences to the row above, compressed, as picture formats do."""
    return zlib.compress(np.diff(picture.astype(np.uint8), axis=0, prepend=0).astype(np.uint8).tobytes(), 6)


class Store:
    """Stands for a disk of another machine: each read is a round trip."""

    def __init__(self):
        self.parts = []

    def read(self, i):
        time.sleep(ROUND_TRIP)  # culprit-too
        return self.parts[i]


class Packed(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        axis = np.arange(SIDE)
        self.points = rng.uniform(20, SIDE - 20, (PICTURES, POINTS, 2))
        self.store = Store()
        for points in self.points:
            x, y = points[:, 0, None, None], points[:, 1, None, None]
            blobs = np.exp(-((axis - x) ** 2 + (axis[:, None] - y) ** 2) / 60).max(0)
            noise = rng.integers(0, 40, (SIDE, SIDE, 3))
            self.store.parts.append(pack(blobs[..., None] * 200 + noise))

    def __len__(self):
        return PICTURES

    def __getitem__(self, i):
        raw = np.frombuffer(zlib.decompress(self.store.read(i)), np.uint8).reshape(SIDE, SIDE, 3)  # culprit-too
        picture = np.cumsum(raw, 0, dtype=np.uint8).astype(np.float32) / 255  # culprit-too
        small = picture.reshape(SMALL, SIDE // SMALL, SMALL, SIDE // SMALL, 3).mean((1, 3))  # culprit-too
        axis = np.arange(SMALL, dtype=np.float32)
        x, y = (self.points[i].T[:, :, None, None] * SMALL / SIDE).astype(np.float32)
        field = np.exp(-((axis - x) ** 2 + (axis[:, None] - y) ** 2) / 4)
        small = (small - small.mean((0, 1))) / small.std((0, 1))
        return torch.from_numpy(small.transpose(2, 0, 1).copy()), torch.from_numpy(field.max(0, keepdims=True))


def network(width=16):
    return nn.Sequential(
        nn.Conv2d(3, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1),
    )  # fmt: skip


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Packed(), batch_size=BATCH, shuffle=True)  # culprit
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    start, done = time.perf_counter(), 0
    for epoch in range(1, EPOCHS + 1):
        for pictures, fields in loader:  # culprit-too
            loss = nn.functional.mse_loss(model(pictures), fields)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
        if epoch % 2 == 0:
            print(f"epoch {epoch}: loss {loss.item():.5f}", flush=True)
    print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")


if __name__ == "__main__":
    main()
