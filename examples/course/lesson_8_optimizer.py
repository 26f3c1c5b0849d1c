"""Lesson 8, the optimizer: four hundred small parameters, updated one after the other.

steptime run -- python examples/course/lesson_8_optimizer.py
steptime judge --args "--mended" -- python examples/course/lesson_8_optimizer.py
"""

import sys

import torch
from torch import nn

MENDED = "--mended" in sys.argv


def main() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(100) for layer in (nn.Linear(32, 32), nn.LayerNorm(32))]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True if MENDED else None, foreach=False)
    for _ in range(150):
        x = torch.randn(64, 32)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
