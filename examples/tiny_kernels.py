"""A network whose activation is written out in many small operators: what compiling and CUDA graphs are for.

steptime run -- python examples/tiny_kernels.py
steptime judge --args "--compile default" --args "--compile reduce-overhead" -- python examples/tiny_kernels.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


class Activation(nn.Module):
    """The tanh form of gelu, one operator at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = 0.7978845608 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + torch.tanh(inner))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compile", choices=["none", "default", "reduce-overhead"], default="none")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), Activation(), nn.LayerNorm(64))]
    network = nn.Sequential(*layers).to(device)
    model = network if arguments.compile == "none" else torch.compile(network, mode=arguments.compile)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    batch = torch.randn(64, 64, device=device)
    for _ in range(arguments.steps):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
