"""Accelerate, with short epochs whose workers are started anew; healthy: persistent_workers."""

import torch
from accelerate import Accelerator
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Few(Dataset):
    """A small data set, of which an item takes a while; an epoch is a few steps."""

    def __len__(self):
        return 32 * max(16 // max(amount, 1), 2)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, 512, generator=generator).mean(0), index % 10


if __name__ == "__main__":
    loader = DataLoader(Few(), batch_size=32, num_workers=1, persistent_workers=not amount)  # fault
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    while done < steps:
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            lap()
            done += 1
