"""Who speaks when: chunks of recordings, longer recordings more often, for a small convolutional network."""

import random
import time
from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(0)
torch.set_num_threads(1)
RECORDINGS, RATE, CHUNK, SPEAKERS, BATCH, STEPS = 7000, 100, 120, 3, 24, 420


@dataclass
class Recording:
    name: str
    minutes: float
    seed: int


class Chunks(IterableDataset):
    """Chunks from recordings that are drawn in proportion to their length."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.recordings = [Recording(f"call{i:05}", float(m), i) for i, m in enumerate(rng.gamma(2, 3, RECORDINGS))]
        self.ends = list(accumulate(each.minutes for each in self.recordings))

    def draw(self, rng):
        return self.recordings[bisect(self.ends, rng.random() * self.ends[-1], 0, RECORDINGS - 1)]

    def chunk(self, recording, first):
        t = (np.arange(CHUNK) + first) / RATE
        phase = recording.seed % 97 + np.arange(SPEAKERS)[:, None]
        active = np.sin(t * (0.7 + phase % 5) + phase) > 0.2
        bands = np.sin(t * (3 + 2 * phase)) * active
        features = np.concatenate([bands, np.cos(t * (5 + 3 * phase)) * active, bands.sum(0, keepdims=True)])
        return torch.from_numpy(features.astype(np.float32)), torch.from_numpy(active.astype(np.float32))

    def __iter__(self):
        rng = random.Random(0)
        while True:
            recording = self.draw(rng)
            yield self.chunk(recording, rng.uniform(0, recording.minutes * 60 * RATE - CHUNK))


def network(width=64):
    return nn.Sequential(
        nn.Conv1d(2 * SPEAKERS + 1, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, width, 5, padding=4, dilation=2),
        nn.ReLU(), nn.Conv1d(width, width, 5, padding=8, dilation=4), nn.ReLU(), nn.Conv1d(width, SPEAKERS, 1),
    )  # fmt: skip


chunks = iter(DataLoader(Chunks(), batch_size=BATCH))
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    features, active = next(chunks)
    loss = nn.functional.binary_cross_entropy_with_logits(model(features), active)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 70 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
