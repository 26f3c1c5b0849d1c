"""Gaussian process regression with a learned embedding of tabular data (deep kernel), by the marginal likelihood."""

import math
import time

import torch
from torch import nn

torch.manual_seed(10)
torch.set_num_threads(1)
POINTS, COLUMNS, HELD_OUT, STEPS = 384, 14, 80, 320


def make_table(generator):
    table = torch.randn(POINTS + HELD_OUT, COLUMNS, generator=generator)
    clean = torch.sin(table[:, 0] * 2) + table[:, 1] * table[:, 2] + 0.5 * table[:, 3].abs()
    target = clean + 0.1 * torch.randn(len(table), generator=generator)
    return table, (target - target.mean()) / target.std()


class Matern(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.log_scale, self.log_height = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(()))

    def forward(self, a, b):
        a, b = a / self.log_scale.exp(), b / self.log_scale.exp()
        squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        away = math.sqrt(3) * squared.clamp_min(1e-8).sqrt()
        return self.log_height.exp() * (1 + away) * torch.exp(-away)


class Regression(nn.Module):
    def __init__(self, inputs, targets, width=6):
        super().__init__()
        self.inputs, self.targets = inputs, targets
        self.embed = nn.Sequential(nn.Linear(COLUMNS, 32), nn.Tanh(), nn.Linear(32, width))
        self.kernel, self.log_noise = Matern(width), nn.Parameter(torch.tensor(-2.0))

    def covariance(self):
        places = self.embed(self.inputs)
        return self.kernel(places, places) + self.log_noise.exp() * torch.eye(len(places))

    def loss(self):
        """Minus the log marginal likelihood of the targets."""
        factor = torch.linalg.cholesky(self.covariance())
        white = torch.linalg.solve_triangular(factor, self.targets[:, None], upper=False)
        return (0.5 * white.square().sum() + factor.diagonal().log().sum()) / len(self.targets)

    @torch.no_grad()
    def predict(self, inputs):
        places = self.embed(inputs)
        weights = torch.linalg.solve(self.covariance(), self.targets)
        return self.kernel(places, self.embed(self.inputs)) @ weights


table, target = make_table(torch.Generator().manual_seed(0))
model = Regression(table[:POINTS], target[:POINTS])
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    loss = model.loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        error = (model.predict(table[POINTS:]) - target[POINTS:]).square().mean().sqrt().item()
        print(f"step {step}: loss {loss.item():.4f} held-out error {error:.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
