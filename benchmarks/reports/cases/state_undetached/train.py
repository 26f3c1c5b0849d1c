"""Forecasts a long sensor record, window after window, with a state that goes on."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, size=96):
        super().__init__()
        self.rnn = nn.GRU(6, size, batch_first=True)
        self.out = nn.Linear(size, 6)

    def forward(self, x, state):
        h, state = self.rnn(x, state)
        return self.out(h), state


def record(steps, seed=0):
    t = torch.arange(steps * 16 + 1) / 20
    g = torch.Generator().manual_seed(seed)
    phase = torch.rand(8, 1, 6, generator=g) * 6
    return (t[None, :, None] * torch.tensor([1.0, 0.5, 0.25, 2.0, 1.5, 0.75]) + phase).sin()


def main():
    torch.manual_seed(0)
    net, data = Forecaster(), record(60)
    state = torch.zeros(1, 8, 96)
    for i in range(60):
        x, y = data[:, 16 * i:16 * i + 16], data[:, 16 * i + 1:16 * i + 17]
        guess, state = net(x, state)  # culprit
        loss = nn.functional.mse_loss(guess, y)
        net.zero_grad()
        loss.backward(retain_graph=True)  # culprit-too
        for parameter in net.parameters():
            parameter.data.add_(parameter.grad, alpha=-1e-3)
        if i % 30 == 0:
            print(f"window {i}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
