"""Lesson 5, compute: a table in double precision, which makes every product of the model double, too.

steptime run -- python examples/course/lesson_5_compute.py
steptime judge --args "--mended" -- python examples/course/lesson_5_compute.py
"""

import sys

import numpy as np
import torch
from torch import nn

MENDED = "--mended" in sys.argv


def main() -> None:
    torch.manual_seed(0)
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(4096, 512)))
    if MENDED:
        table = table.float()
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
    model.to(table.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(80):
        rows = table[(step * 256) % 4096 :][:256]
        loss = nn.functional.mse_loss(model(rows), rows.mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
