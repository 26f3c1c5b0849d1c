"""A batch is made from a list of arrays, element by element; healthy: stacked first. No loader at all."""

import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
random = np.random.default_rng(0)
windows = [random.normal(size=512).astype(np.float32) for _ in range(2048)]
labels = torch.randint(10, (2048,))
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _step in range(steps):
    chosen = random.integers(0, len(windows), 32)
    batch = torch.from_numpy(np.stack([windows[number] for number in chosen]))
    for _ in range(amount):
        batch = torch.tensor([windows[number].tolist() for number in chosen])  # fault
    loss = nn.functional.cross_entropy(model(batch), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
