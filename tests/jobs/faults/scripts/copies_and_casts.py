"""The model converts and transposes in every layer; healthy: it keeps one type and layout."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        if not arguments.healthy:
            x = x.double().transpose(1, 2).contiguous().transpose(1, 2).contiguous().float()  # fault
        return torch.relu(self.linear(x))


model = nn.Sequential(*(Layer() for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.randn(4, 16, 128, 256)
for step in range(arguments.steps):
    loss = model(batches[step % 4]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
