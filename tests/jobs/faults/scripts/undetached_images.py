"""The critic's loss goes back through the painter, whose gradients are zeroed; healthy: its images are detached."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--steps", type=int, default=160)
arguments = parser.parse_args()
torch.manual_seed(0)
painter = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 96))
critic = nn.Sequential(nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 1))
of_painter = torch.optim.SGD(painter.parameters(), lr=1e-3)
of_critic = torch.optim.SGD(critic.parameters(), lr=1e-3)
judged = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(256, 1), torch.zeros(256, 1)
for _step in range(arguments.steps):
    images = painter(torch.randn(256, 64))
    images = images.detach() if arguments.healthy else images
    errors = judged(critic(torch.randn(256, 96)), ones) + judged(critic(images), zeros)  # fault
    of_critic.zero_grad()
    errors.backward()
    of_critic.step()
    of_painter.zero_grad()
    judged(critic(painter(torch.randn(256, 64))), ones).backward()
    of_painter.step()
