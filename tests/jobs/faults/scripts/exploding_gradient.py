"""The learning rate lies above the largest that converges, so that the gradients grow; healthy: far below."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=6000)
arguments = parser.parse_args()
torch.manual_seed(0)

inputs = torch.randn(4096, 64)
targets = torch.randn(4096, 64)
steepest = torch.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[-1].item()
rate = 0.5 if arguments.healthy else 2.006  # fault
model = nn.Linear(64, 64, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=rate / steepest)

for _ in range(arguments.steps):
    loss = (model(inputs) - targets).square().sum(1).mean() / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
