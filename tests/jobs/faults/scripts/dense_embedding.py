"""A large table gets a dense gradient; healthy: a sparse one."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()
torch.manual_seed(0)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(200_000, 32, sparse=arguments.healthy)
        self.score = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, pairs):
        return self.score(self.items(pairs).flatten(1))[:, 0]


model = Recommender()
if arguments.healthy:
    optimizers = [torch.optim.SparseAdam(model.items.parameters()), torch.optim.SGD(model.score.parameters(), 0.01)]
else:
    optimizers = [torch.optim.Adam(model.parameters())]  # fault
pairs = torch.randint(200_000, (16, 256, 2))
clicks = torch.rand(16, 256).round()
for step in range(arguments.steps):
    loss = nn.functional.binary_cross_entropy_with_logits(model(pairs[step % 16]), clicks[step % 16])
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
