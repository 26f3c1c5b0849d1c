"""Every batch is padded to the longest sentence there could be; healthy: to the longest of the batch."""

import random

import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
random.seed(0)
sentences = [torch.randint(1, 200, (random.randint(24, 32),)) for _ in range(2048)]


def pad(batch):
    longest = max(len(words) for words in batch) * (1 + amount)
    padded = torch.zeros(len(batch), longest, dtype=torch.long)  # fault
    for row, words in zip(padded, batch, strict=True):
        row[: len(words)] = words
    return padded


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 128)
        self.layers = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 128))
        self.output = nn.Linear(128, 16)

    def forward(self, tokens):
        return self.output(self.layers(self.embedding(tokens)))


model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(sentences, batch_size=16, collate_fn=pad)  # fault
done = 0
while done < steps:
    for tokens in loader:
        scores = model(tokens)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten() % 16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lap()
        done += 1
