"""A step with one part for each bound: a matmul (arithmetic), a relu of a large tensor (memory), and many operators on
small tensors (overhead). The report's table Operators has the FLOP/byte of each.

steptime run --recording runs/bounds -- python examples/three_bounds.py
steptime report runs/bounds -o bounds.md

A relu in float32 reads and writes four bytes per operation: 1 / 8 = 0.125 FLOP/byte. A product of two matrices of side
n has 2 n^3 operations for three matrices: n / 3 in bfloat16, 1,024 for a side of 3072.
"""

from __future__ import annotations

import argparse

import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=3072)
    parser.add_argument("--steps", type=int, help="default: 100 on a GPU, 20 on a CPU")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = arguments.steps or (100 if device == "cuda" else 20)
    weight = torch.nn.Parameter(torch.randn(arguments.side, arguments.side, device=device, dtype=torch.bfloat16))
    small = torch.nn.Parameter(torch.ones(16, device=device))
    optimizer = torch.optim.SGD([weight, small], lr=1e-6, fused=True)
    batch = torch.randn_like(weight)
    large = torch.randn(1 << 24, device=device)
    for _ in range(steps):
        product = batch @ weight
        positive = torch.relu(large)
        number = small
        for _ in range(200):
            number = number * 0.999 + 0.001
        loss = product.mean().float() + positive[:16].mean() + number.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
