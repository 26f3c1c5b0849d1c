"""A small training job in one of four shapes, on a CUDA device where there is one, for the benchmarks of false wins and
of turns.

python -m benchmarks.false_wins_job dense|convolution|attention|loader
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS = 100_000
WIDTH, CLASSES, BATCH = 256, 10, 32


class Items(Dataset):
    """Each takes about half a millisecond of one CPU to make."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        sound = torch.randn(4096, generator=generator)
        return torch.fft.rfft(sound).abs()[:WIDTH], index % CLASSES


class Attention(nn.Module):
    """One layer with dropout, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(inputs.reshape(len(inputs), -1, 64)).mean(1))


def model_of(shape: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The model, and the shape of one of its inputs."""
    if shape == "convolution":
        layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)), (3, 24, 24)
    if shape == "attention":
        return Attention(), (16 * 64,)
    return nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)), (
        WIDTH,
    )


def main() -> None:
    shape = sys.argv[1]
    torch.manual_seed(0)
    model, inputs_shape = model_of(shape)
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if shape == "loader":
        batches = iter(DataLoader(Items(), BATCH, num_workers=1))
    else:
        batches = ((torch.randn(BATCH, *inputs_shape), torch.randint(CLASSES, (BATCH,))) for _ in range(STEPS))
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
