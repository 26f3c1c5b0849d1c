"""Kinds of trees from laser scans: points are pooled in the cells of a grid."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(14)
torch.set_num_threads(1)
POINTS, SCANS, KINDS, WIDTH, STEPS = 2000, 6, 5, 32, 160


class Cells(nn.Module):
    """Mean of the features of all points in each cell of each scan."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, places, scan, features):
        x, y, z = (places / self.size).floor().long().add(1024).T
        keys, index, counts = torch.unique(
            ((scan * 4096 + x) * 4096 + y) * 4096 + z, return_inverse=True, return_counts=True
        )
        means = features.new_zeros(len(keys), features.shape[1]).index_add(0, index, features) / counts[:, None]
        centres = places.new_zeros(len(keys), 3).index_add(0, index, places) / counts[:, None]
        return centres, keys // 4096**3, means


class Trees(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.fine, self.coarse = Cells(0.1), Cells(0.4)
        self.cells = nn.Sequential(nn.Linear(WIDTH + 3, 2 * WIDTH), nn.ReLU())
        self.out = nn.Linear(2 * WIDTH, KINDS)

    def forward(self, places, scan):
        centres, scan, features = self.fine(places, scan, self.points(places))
        features = self.cells(torch.cat([features, centres], 1))
        _, scan, features = self.coarse(centres, scan, features)
        whole = features.new_zeros(SCANS, features.shape[1]).index_add(0, scan, features)
        return self.out(whole / scan.bincount(minlength=SCANS)[:, None])


def scans():
    """Points of each scan around a stem, with a crown whose width tells the kind."""
    kinds = torch.randint(KINDS, (SCANS,))
    height = torch.rand(SCANS, POINTS, 1)
    wide = (0.1 + 0.15 * kinds[:, None, None]) * torch.sin(3.1 * height)
    places = torch.cat([wide * torch.randn(SCANS, POINTS, 2), 2 * height], 2).flatten(0, 1)
    return places + 1, torch.arange(SCANS).repeat_interleave(POINTS), kinds


trees = Trees()
optimizer = torch.optim.Adam(trees.parameters(), 2e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    places, scan, kinds = scans()
    loss = F.cross_entropy(trees(places, scan), kinds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
