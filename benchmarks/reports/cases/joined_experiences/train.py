"""Continual learning online: small experiences arrive one after another, a memory of earlier samples is replayed."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate

torch.manual_seed(7)
torch.set_num_threads(1)
EXPERIENCES, FRESH, MEMORY, REPLAYED, FEATURES, CLASSES = 280, 16, 512, 128, 196, 10


def stream(generator):
    """Experiences of a few samples each, whose classes drift."""
    prototypes = torch.randn(CLASSES, FEATURES, generator=generator)
    for i in range(EXPERIENCES):
        classes = torch.randint(3, (FRESH,), generator=generator) + i * CLASSES // EXPERIENCES
        labels = classes % CLASSES
        yield TensorDataset(prototypes[labels] + torch.randn(FRESH, FEATURES, generator=generator), labels)


class ReservoirBuffer:
    """Keeps a random sample of everything that was seen."""

    def __init__(self, size, generator):
        self.size, self.generator = size, generator
        self.data = None
        self.keys = torch.empty(0)

    def update(self, experience):
        joined = experience if self.data is None else ConcatDataset([experience, self.data])  # culprit-too
        keys = torch.cat([torch.rand(len(experience), generator=self.generator), self.keys])
        self.keys, kept = keys.sort(descending=True)
        self.keys, kept = self.keys[: self.size], kept[: self.size]
        self.data = Subset(joined, kept.tolist())  # culprit

    def sample(self, count):
        if self.data is None:
            return []
        picks = torch.randint(len(self.data), (count,), generator=self.generator)
        return [self.data[i] for i in picks.tolist()]  # culprit-too


class Strategy:
    def __init__(self, model, buffer):
        self.model, self.buffer = model, buffer
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def train(self, experience):
        samples = [experience[i] for i in range(len(experience))] + self.buffer.sample(REPLAYED)
        inputs, labels = default_collate(samples)
        loss = F.cross_entropy(self.model(inputs), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.buffer.update(experience)
        return loss


generator = torch.Generator().manual_seed(0)
model = nn.Sequential(
    nn.Linear(FEATURES, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(),
    nn.Linear(384, CLASSES),
)
strategy = Strategy(model, ReservoirBuffer(MEMORY, generator))
start = time.perf_counter()
for number, experience in enumerate(stream(generator), 1):
    loss = strategy.train(experience)
    if number % 70 == 0:
        print(f"experience {number}: loss {loss.item():.4f}", flush=True)
print(f"{number} steps, {1e3 * (time.perf_counter() - start) / number:.2f} ms/step")
