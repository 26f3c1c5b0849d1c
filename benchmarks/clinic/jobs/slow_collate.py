"""A collate function pads token by token in Python; healthy: pad_sequence. Plain loop with a loader."""

import random

import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
random.seed(0)
sentences = [(torch.randint(1000, (random.randint(50, 60),)), number % 10) for number in range(2048)]


def pad(batch):
    tokens = pad_sequence([words for words, _ in batch], batch_first=True)
    for _ in range(amount):
        longest = max(len(words) for words, _ in batch)
        rows = [words.tolist() + [0] * (longest - len(words)) for words, _ in batch]  # fault
        tokens = torch.tensor(rows)  # fault
    return tokens, torch.tensor([label for _, label in batch])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.hidden = nn.Linear(64, 1024)
        self.output = nn.Linear(1024, 10)

    def forward(self, tokens):
        return self.output(torch.relu(self.hidden(self.embedding(tokens))).mean(1))


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(sentences, batch_size=32, collate_fn=pad)  # fault
done = 0
while done < steps:
    for tokens, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        lap()
        done += 1
