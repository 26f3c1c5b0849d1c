"""The jobs of `own_cost.py`. argv: kind, steps.

kinds: "perceptron" (small, batches from a loader), "workers" (the same, of two processes), "operators" (some 45,000
small ones a step), "layers" (300 of them, with Adam), "large" (steps of a quarter of a second in few operators),
"rollouts" (without gradients, between the steps), "python" (items that pure Python makes).
"""

import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    """Rows of numbers; `work` is how often Python adds for one."""

    def __init__(self, width, work):
        self.rows, self.work = torch.randn(256, width), work

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        total = 0
        for number in range(self.work):
            total += add(number, index)
        return self.rows[index], total % 8


def add(number, index):
    """A function of the user's that is called often."""
    return number ^ index


class Loop(torch.nn.Module):
    """Small operators one after the other."""

    def __init__(self, width, rounds):
        super().__init__()
        self.layer, self.rounds = torch.nn.Linear(width, 8), rounds

    def forward(self, values):
        values = self.layer(values)
        for _ in range(self.rounds):
            values = values * 0.9999 + 0.0001
        return values


def batches(kind, width):
    """Batches, epoch after epoch."""
    work = 200 if kind == "python" else 1
    loader = DataLoader(Items(width, work), batch_size=16, num_workers=2 if kind == "workers" else 0)
    while True:
        yield from loader


def model_of(kind, width):
    """The model of a kind."""
    if kind == "operators":
        return Loop(width, 6_000)
    if kind == "layers":
        return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(300)))
    if kind == "large":
        return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(12)))
    return torch.nn.Sequential(torch.nn.Linear(width, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))


def main(kind, count):
    """Trains for `count` steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = 512 if kind == "large" else 64
    model = model_of(kind, width)
    optimizer = torch.optim.Adam(model.parameters())
    for number, (rows, labels) in zip(range(count), batches(kind, width), strict=False):
        if kind == "large":
            rows = rows.repeat(16, 1)
            labels = labels.repeat(16)
        if kind == "rollouts" and number % 10 == 0:
            with torch.no_grad():
                for _ in range(500):
                    model(rows)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
