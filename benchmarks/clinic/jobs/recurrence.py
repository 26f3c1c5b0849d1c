"""A moving average runs as a Python loop over time; healthy: one product. Functional steps without zero_grad."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
MOMENTS, DECAY = 128, 0.9


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(32, 64)
        self.wide = nn.Linear(64, 2048)
        self.deep = nn.Linear(2048, 1024)
        self.output = nn.Linear(1024, 10)
        self.register_buffer("decays", DECAY ** torch.arange(MOMENTS - 1.0, -1.0, -1.0))

    def forward(self, series):
        inputs = torch.tanh(self.narrow(series))
        by_hand = min(4 * amount, MOMENTS)
        state = torch.zeros(len(series), 64)
        for moment in range(by_hand):
            state = DECAY * state + inputs[:, moment]  # fault
        rest = torch.einsum("btf,t->bf", inputs[:, by_hand:], self.decays[by_hand:])
        state = DECAY ** (MOMENTS - by_hand) * state + rest
        return self.output(torch.relu(self.deep(torch.relu(self.wide(state)))))


model = Forecaster()
series, labels = torch.randn(16, 64, MOMENTS, 32), torch.randint(10, (16, 64))
weights = list(model.parameters())
for step in range(steps):
    loss = nn.functional.cross_entropy(model(series[step % 16]), labels[step % 16])
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        torch._foreach_add_(weights, gradients, alpha=-0.01)
    lap()
