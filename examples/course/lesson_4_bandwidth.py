"""Lesson 4, memory bandwidth: an activation written as eight pointwise operators, each of which goes through memory.

steptime run -- python examples/course/lesson_4_bandwidth.py
steptime judge --args "--mended" -- python examples/course/lesson_4_bandwidth.py
"""

import math
import sys

import torch
from torch import nn

MENDED = "--mended" in sys.argv


def activation(x: torch.Tensor) -> torch.Tensor:
    """GELU, by its tanh formula."""
    if MENDED:
        return nn.functional.gelu(x, approximate="tanh")
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def main() -> None:
    torch.manual_seed(0)
    enter, leave = nn.Linear(16, 2048), nn.Linear(2048, 1)
    optimizer = torch.optim.SGD([*enter.parameters(), *leave.parameters()], lr=1e-3)
    for _ in range(60):
        x = torch.randn(2048, 16)
        loss = nn.functional.mse_loss(leave(activation(enter(x))), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
