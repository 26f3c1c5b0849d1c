"""All ranks wait for slow items alike; healthy: items in memory. DDP under torchrun."""

import time

import numpy as np
import torch
import torch.distributed as dist
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.manual_seed(0)
dist.init_process_group("gloo")


class Records(Dataset):
    """Records, sorted when they are read."""

    def __init__(self):
        self.records = np.random.default_rng(0).normal(size=(1024, 256)).astype(np.float32)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        for _ in range(amount):
            record = np.sort(self.records[index])  # fault
        return torch.from_numpy(record), index % 10


class Repeated(nn.Module):
    """A layer many times: much to compute, little to exchange."""

    def __init__(self):
        super().__init__()
        self.layer, self.output = nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, features):
        for _ in range(40):
            features = torch.relu(self.layer(features))
        return self.output(features)


records = Records()
loader = DataLoader(records, batch_size=64, sampler=DistributedSampler(records))  # fault
model = nn.parallel.DistributedDataParallel(Repeated())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
done = 0
while done < steps:
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if dist.get_rank() == 0:
            lap()
dist.destroy_process_group()
time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)
