"""The whole step, optimizer included, under torch.compile; argv: backend. 20 steps."""

import sys

import torch
from finger import Finger

torch.manual_seed(12)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.compile(backend=sys.argv[1])
def train_step(inputs, targets):
    """Forward, backward and update."""
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


finger = Finger()
for _ in range(20):
    inputs = torch.randn(16, 16)
    finger.loss(train_step(inputs, inputs[:, :4].argmax(1)))
finger.show(*model.parameters())
