"""A recurrence runs as a Python loop over time; healthy: nn.GRU, one call. Functional steps without zero_grad."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(32, 64)
        self.wide = nn.Linear(64, 2048)
        self.deep = nn.Linear(2048, 1024)
        self.output = nn.Linear(1024, 10)

    def forward(self, series):
        state = torch.zeros(len(series), 64)
        for moment in range(min(4 * amount, series.shape[1])):
            state = self.cell(series[:, moment], state)  # fault
        return self.output(torch.relu(self.deep(torch.relu(self.wide(state)))))


model = Forecaster()
series, labels = torch.randn(16, 64, 128, 32), torch.randint(10, (16, 64))
weights = [weight for name, weight in model.named_parameters() if amount or not name.startswith("cell")]
for step in range(steps):
    loss = nn.functional.cross_entropy(model(series[step % 16]), labels[step % 16])
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        torch._foreach_add_(weights, gradients, alpha=-0.01)
    lap()
