"""Sentences are padded element by element; healthy: pad_sequence."""

import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)


class Sentences(Dataset):
    """Token numbers of sentences of 40 to 120 words."""

    def __init__(self):
        random.seed(0)
        lengths = [random.randint(40, 120) for _ in range(2048)]
        self.tokens = [torch.randint(1000, (length,)) for length in lengths]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], index % 10


def pad(batch):
    longest = max(len(tokens) for tokens, _ in batch)
    rows = [[int(tokens[i]) if i < len(tokens) else 0 for i in range(longest)] for tokens, _ in batch]  # fault
    return torch.tensor(rows), torch.tensor([label for _, label in batch])


def pad_at_once(batch):
    return pad_sequence([tokens for tokens, _ in batch], True), torch.tensor([label for _, label in batch])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.hidden = nn.Linear(128, 256)
        self.output = nn.Linear(256, 10)

    def forward(self, tokens):
        return self.output(torch.relu(self.hidden(self.embedding(tokens))).mean(1))


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(Sentences(), batch_size=64, collate_fn=pad_at_once if arguments.healthy else pad)
done = 0
while done < arguments.steps:
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        done += 1
