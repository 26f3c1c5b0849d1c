"""Learns an embedding in which samples of one class lie close together. Its first loss is fine, all later ones are NaN.

The distance of a sample from itself is 0, where the square root has no finite derivative: steptime nan names the line.
"""

import torch
from torch import nn


def distances(points: torch.Tensor) -> torch.Tensor:
    """Between all pairs of points."""
    squares = points.square().sum(dim=1)
    between = squares[:, None] + squares[None, :] - 2 * points @ points.T
    return between.clamp(min=0).sqrt()


def contrastive(points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Near where labels agree, at least 1 apart where they do not."""
    apart = distances(points)
    same = labels[:, None] == labels[None, :]
    return torch.where(same, apart, (1 - apart).clamp(min=0)).mean()


def main() -> None:
    torch.manual_seed(0)
    embed = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(embed.parameters(), lr=1e-3)
    for step in range(40):
        labels = torch.randint(0, 4, (16,))
        points = embed(torch.randn(16, 32) + labels[:, None])
        loss = contrastive(points, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
