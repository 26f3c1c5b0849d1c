"""Lesson 1, input: a dataset opens and parses its whole table for every sample.

steptime run -- python examples/course/lesson_1_input.py
steptime judge --args "--mended" -- python examples/course/lesson_1_input.py
"""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
ROWS = [[float((row * 31 + column * 17) % 101) / 101 for column in range(64)] for row in range(256)]
FILE = json.dumps(ROWS)


class Table(Dataset):
    """Rows of numbers, and whether their mean is large."""

    def __init__(self) -> None:
        self.rows = torch.tensor(ROWS)

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.rows[index] if MENDED else torch.tensor(json.loads(FILE)[index])
        return row, (row.mean() > 0.5).long()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(6):
        for rows, labels in DataLoader(Table(), batch_size=32, shuffle=True):
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
