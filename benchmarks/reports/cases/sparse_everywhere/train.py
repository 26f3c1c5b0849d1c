"""Vectors of the stations of a railway, from random rides between them."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(13)
torch.set_num_threads(1)
STATIONS, WIDTH, RIDE, NEAR, FALSE, STEPS = 600, 48, 10, 3, 2, 400


class Railway:
    def __init__(self):
        around = torch.arange(STATIONS)
        steps = torch.tensor([-1, 1, -20, 20])
        self.linked = (around[:, None] + steps) % STATIONS

    def rides(self):
        """One ride from each station: station x RIDE."""
        ride = [torch.randperm(STATIONS)]
        for _ in range(RIDE - 1):
            ride.append(self.linked[ride[-1], torch.randint(4, (STATIONS,))])
        return torch.stack(ride, 1)


class Vectors(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(STATIONS, WIDTH, sparse=True)  # culprit

    def forward(self, ride):
        """How unlikely neighbours on a ride are, compared with stations drawn at random."""
        here = self.table(ride[:, :-NEAR])  # culprit-too
        loss = 0.0
        for ahead in range(1, NEAR + 1):
            true = self.table(ride[:, ahead : ride.shape[1] - NEAR + ahead])  # culprit-too
            loss = loss - F.logsigmoid((here * true).sum(2)).mean()
        for _ in range(FALSE):
            false = self.table(torch.randint(STATIONS, here.shape[:2]))  # culprit-too
            loss = loss - F.logsigmoid(-(here * false).sum(2)).mean()
        return loss


railway, vectors = Railway(), Vectors()
optimizer = torch.optim.SparseAdam(vectors.parameters(), 1e-2)  # culprit-too
start = time.perf_counter()
for step in range(1, STEPS + 1):
    loss = vectors(railway.rides())
    optimizer.zero_grad()
    loss.backward()  # culprit-too
    optimizer.step()  # culprit
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
