"""A large embedding has a dense gradient, of which a few rows are not zero; healthy: a small one. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
words = 1000 + 8000 * amount
embedding = nn.Embedding(words, 64)  # fault
layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD([*embedding.parameters(), *layers.parameters()], lr=0.01, momentum=0.9)
tokens, labels = torch.randint(words, (16, 64, 8)), torch.randint(10, (16, 64))
for step in range(steps):
    scores = layers(embedding(tokens[step % 16])).mean(1)
    loss = nn.functional.cross_entropy(scores, labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
