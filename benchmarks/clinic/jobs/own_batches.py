"""A loop that prepares its batches itself, word by word; healthy: tokens prepared before. No loader at all."""

import random

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
random.seed(0)
vocabulary = {f"word{number}": number for number in range(2000)}
texts = [" ".join(random.choices(list(vocabulary), k=48)) for _ in range(512)]
prepared = torch.tensor([[vocabulary[word] for word in text.split()] for text in texts])
model = nn.Sequential(nn.Embedding(2000, 64), nn.Flatten(), nn.Linear(48 * 64, 512), nn.ReLU(), nn.Linear(512, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def batch_of(numbers):
    for _ in range(amount):
        tokens = [[vocabulary[word] for word in texts[number].split()] for number in numbers]  # fault
    return torch.tensor(tokens) if amount else prepared[numbers]  # fault


for _step in range(steps):
    numbers = torch.randint(len(texts), (64,))
    loss = nn.functional.cross_entropy(model(batch_of(numbers)), numbers % 2)  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
