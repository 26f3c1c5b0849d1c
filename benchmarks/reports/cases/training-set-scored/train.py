"""Tabular data: categories and numbers, a network with embeddings, scores of both sets after each epoch."""

import itertools
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
ROWS, HELD_OUT, COLUMNS, LEVELS, NUMBERS, BATCH, EPOCHS = 50000, 4000, 12, 200, 20, 1000, 8


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList(nn.Embedding(LEVELS, 12) for _ in range(COLUMNS))
        self.norm = nn.BatchNorm1d(NUMBERS)
        sizes = [12 * COLUMNS + NUMBERS, 256, 256, 128]
        self.body = nn.Sequential(
            *[m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU(), nn.LayerNorm(b))]
        )
        self.out = nn.Linear(128, 2)

    def forward(self, categories, numbers):
        parts = [table(categories[:, i]) for i, table in enumerate(self.levels)]
        return self.out(self.body(torch.cat([*parts, self.norm(numbers)], 1)))


class Scores:
    def __init__(self):
        self.hits = self.loss = self.seen = 0.0

    @torch.no_grad()
    def add(self, logits, labels):
        self.hits += (logits.argmax(1) == labels).sum().item()
        self.loss += F.cross_entropy(logits, labels, reduction="sum").item()
        self.seen += len(labels)

    def __str__(self):
        return f"loss {self.loss / self.seen:.4f} accuracy {self.hits / self.seen:.4f}"


def table(rows):
    categories, numbers = torch.randint(LEVELS, (rows, COLUMNS)), torch.randn(rows, NUMBERS)
    return categories, numbers, ((categories[:, 0] < 100) ^ (numbers[:, 0] > 0)).long()


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    scores = Scores()
    for categories, numbers, labels in zip(*(part.split(BATCH) for part in data), strict=True):
        scores.add(model(categories, numbers), labels)
    model.train()
    return scores


train_set, test_set = table(ROWS), table(HELD_OUT)
model, step = Tabular(), 0
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.perf_counter()
for epoch in range(EPOCHS):
    order = torch.randperm(ROWS)
    for rows in order.split(BATCH):
        categories, numbers, labels = (part[rows] for part in train_set)
        logits = model(categories, numbers)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    scores = evaluate(model, train_set)  # culprit
    print(f"epoch {epoch}: step {step}: training {scores}, test {evaluate(model, test_set)}", flush=True)
print(f"{step} steps, {1e3 * (time.perf_counter() - start) / step:.2f} ms/step")
