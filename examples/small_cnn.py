"""A small convolutional network on images that are made up, with two faults to choose from.

steptime lab -- python examples/small_cnn.py
steptime nan -- python examples/small_cnn.py --nan
steptime run -- python examples/small_cnn.py --leak
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


class Network(nn.Module):
    """Two convolutions, and a root that is taken of negative numbers where `broken`."""

    def __init__(self, *, broken: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32, CLASSES)
        self.broken, self.calls = broken, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        means = self.features(images).mean(dim=(2, 3))
        self.calls += 1
        if self.broken and self.calls > 50:
            means = (means - 0.5).sqrt()
        return self.head(means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--nan", action="store_true", help="take the root of negative numbers from step 51 on")
    parser.add_argument("--leak", action="store_true", help="add up losses together with their graphs")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (512,))
    images = torch.randn(512, 3, 32, 32) + labels[:, None, None, None]
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True, drop_last=True)
    model = Network(broken=arguments.nan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step, total_loss = 0, torch.zeros(())
    while step < arguments.steps:
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
            if arguments.leak:
                total_loss += loss
            else:
                total_loss += loss.detach()
            step += 1
            if step == arguments.steps:
                break
    print(f"mean loss {total_loss.item() / step:.6f}")


if __name__ == "__main__":
    main()
