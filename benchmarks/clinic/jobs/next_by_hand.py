"""Slow items behind an iterator that is advanced by hand, as in loops that count iterations; healthy: fast items."""

import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Signals(Dataset):
    """Signals, filtered when they are read."""

    def __init__(self):
        self.signals = np.random.default_rng(0).normal(size=(2048, 512)).astype(np.float32)
        self.window = np.hanning(65).astype(np.float32)

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        signal = self.signals[index]
        for _ in range(amount):
            signal = np.convolve(signal, self.window, mode="same")  # fault
        return torch.from_numpy(signal), index % 10


loader = DataLoader(Signals(), batch_size=24, shuffle=True, drop_last=True)  # fault
batches = iter(loader)
model = nn.Sequential(nn.Linear(512, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _iteration in range(steps):
    try:
        signals, labels = next(batches)
    except StopIteration:
        batches = iter(loader)
        signals, labels = next(batches)
    loss = nn.functional.cross_entropy(model(signals), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    lap()
