"""Lesson 7, memory: losses are kept for the end of the run, and each keeps the graph that it was computed by.

steptime run -- python examples/course/lesson_7_memory.py
steptime judge --args "--mended" -- python examples/course/lesson_7_memory.py
"""

import sys

import torch
from torch import nn

MENDED = "--mended" in sys.argv


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 256))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    losses = []
    for _ in range(1200):
        x = torch.randn(64, 256)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        penalty = loss + 1e-4 * model(x[:16]).square().mean()
        losses.append(penalty.detach() if MENDED else penalty)
    print(f"mean loss {torch.stack(losses).mean().item():.6f}")


if __name__ == "__main__":
    main()
