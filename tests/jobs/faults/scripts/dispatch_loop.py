"""A recurrence runs as a Python loop over 100 time steps; healthy: one convolution over all of them."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(32, 64)
        self.convolution = nn.Conv1d(32, 64, 9)
        self.wide = nn.Linear(64, 2048)
        self.output = nn.Linear(2048, 10)

    def forward(self, series):
        if arguments.healthy:
            hidden = self.convolution(series.transpose(1, 2)).mean(2)
        else:
            hidden = torch.zeros(len(series), 64)
            for moment in range(series.shape[1]):
                hidden = self.cell(series[:, moment], hidden)  # fault
        return self.output(torch.relu(self.wide(hidden)))


series = torch.randn(16, 32, 100, 32)
labels = torch.randint(10, (16, 32))
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(arguments.steps):
    loss = nn.functional.cross_entropy(model(series[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
