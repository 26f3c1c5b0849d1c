"""LBFGS with a closure; after each step an error is computed point by point in Python; healthy: on tensors."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
points = torch.linspace(-1, 1, 512)[:, None]
values = torch.sin(6 * points)
model = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
options = {"max_iter": 4, "history_size": 4, "tolerance_grad": 0, "tolerance_change": 0}  # as much work in every step
optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, **options)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(points), values)
    loss.backward()
    return loss


def error():
    with torch.no_grad():
        predicted = model(points)
        if not amount:
            return (predicted - values).abs().max()
        for _ in range(amount):
            worst = max(abs(float(p) - float(v)) for p, v in zip(predicted, values, strict=True))  # fault
    return worst


for _ in range(steps):
    optimizer.step(closure)
    error()  # fault
    lap()
