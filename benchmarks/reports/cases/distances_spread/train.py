"""Alignment of series: an embedding is learned so that two recordings of one gesture run along each other (soft-DTW)."""

import math
import time

import torch
from torch import nn

torch.manual_seed(9)
torch.set_num_threads(1)
FAR = 1e4


def euclidean(x, y):
    """Squared distances of all frames of x to all frames of y."""
    n, m, d = x.shape[1], y.shape[1], x.shape[2]
    x = x.unsqueeze(2).expand(-1, n, m, d)  # culprit-too
    y = y.unsqueeze(1).expand(-1, n, m, d)  # culprit-too
    return torch.pow(x - y, 2).sum(3)  # culprit


class SoftDTW(nn.Module):
    """Soft dynamic time warping, diagonal by diagonal."""

    def __init__(self, gamma, distance=euclidean):
        super().__init__()
        self.gamma, self.distance = gamma, distance

    def softmin(self, *values):
        return -self.gamma * torch.logsumexp(torch.stack(values) / -self.gamma, dim=0)

    def forward(self, x, y):
        costs = self.distance(x, y)
        batch, n, m = costs.shape
        skewed = torch.cat([costs, costs.new_full((batch, n, n), FAR)], dim=2).flatten(1)
        skewed = skewed[:, : n * (n + m - 1)].view(batch, n, n + m - 1)
        corner, edge = costs.new_zeros(batch, 1), costs.new_full((batch, 1), FAR)
        before = last = edge.expand(-1, n)
        for diagonal in skewed.unbind(2):
            across = torch.cat([corner, before[:, :-1]], dim=1)
            up = torch.cat([edge, last[:, :-1]], dim=1)
            before, last, corner = last, diagonal + self.softmin(up, last, across), edge
        return last[:, -1]


class Embedding(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2)
        )

    def forward(self, x):
        return nn.functional.normalize(self.body(x.transpose(1, 2)).transpose(1, 2), dim=2)


def gestures(batch, frames=32, channels=6):
    """Pairs of recordings: the same movement at another pace, with noise."""
    pace = torch.linspace(0, 1, frames).expand(batch, frames)
    warped = pace ** (0.6 + torch.rand(batch, 1))
    rates = 1 + 4 * torch.rand(batch, 1, channels)

    def recorded(times):
        return torch.sin(2 * math.pi * times[..., None] * rates) + 0.1 * torch.randn(batch, frames, channels)

    return recorded(pace), recorded(warped)


def main(steps=150, batch=8):
    net, align = Embedding(6, 96), SoftDTW(gamma=0.1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        a, b = map(net, gestures(batch))
        same, other = align(a, b), align(a, b.roll(1, dims=0))
        loss = nn.functional.softplus((same - other) / a.shape[1]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


main()
