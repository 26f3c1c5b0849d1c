"""LBFGS: the optimizer calls forward and backward itself, several times per step; ten steps."""

import torch
from finger import Finger

torch.manual_seed(6)
inputs = torch.randn(64, 8)
targets = inputs.sum(1, keepdim=True).tanh()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5, tolerance_grad=0, tolerance_change=0)
finger = Finger()


def closure():
    """One evaluation of the loss and its gradient."""
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


for _ in range(10):
    finger.loss(optimizer.step(closure))
finger.show(*model.parameters())
