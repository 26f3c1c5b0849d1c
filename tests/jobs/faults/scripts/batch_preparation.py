"""The loop tokenises its own batches from text; healthy: the text was tokenised once."""

import argparse
import random

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)

random.seed(0)
text = "".join(random.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(200_000))
vocabulary = {letter: number for number, letter in enumerate(sorted(set(text)))}
tokens = torch.tensor([vocabulary[letter] for letter in text])


def read_batch():
    starts = [random.randrange(len(text) - 257) for _ in range(32)]
    rows = torch.empty(32, 257, dtype=torch.long)
    for row, start in enumerate(starts):
        for column in range(257):
            rows[row, column] = vocabulary[text[start + column]]  # fault
    return rows[:, :-1], rows[:, 1:]


def slice_batch():
    starts = torch.randint(len(text) - 257, (32, 1))
    rows = tokens[starts + torch.arange(257)]
    return rows[:, :-1], rows[:, 1:]


next_batch = slice_batch if arguments.healthy else read_batch
model = nn.Sequential(nn.Embedding(len(vocabulary), 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, len(vocabulary)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(arguments.steps):
    inputs, targets = next_batch()  # fault
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
