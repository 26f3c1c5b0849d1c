"""A short job for `overhead.py`; argv: training steps. With 0 it imports torch and leaves."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


def batches(dataset):
    """Batches, epoch after epoch."""
    while True:
        yield from DataLoader(dataset, batch_size=16, shuffle=True)


def main(count):
    """Trains a small perceptron for `count` steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
    )
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(1600, 64)
    dataset = TensorDataset(inputs, inputs[:, :8].argmax(1))
    for _, (batch, labels) in zip(range(count), batches(dataset), strict=False):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]))
