"""Accelerate, with short epochs whose workers are started anew; healthy: persistent_workers."""

import torch
from accelerate import Accelerator
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
if __name__ == "__main__":
    size = 32 * max(16 // max(amount, 1), 2)
    data = TensorDataset(torch.randn(size, 512), torch.randint(10, (size,)))
    loader = DataLoader(data, batch_size=32, num_workers=2, persistent_workers=not amount)  # fault
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
