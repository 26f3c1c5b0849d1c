"""Embeddings of the points of particle tracks: close within a track, far between tracks of one event."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
EVENTS, TRACKS, POINTS, WIDTH, STEPS = 4, 24, 480, 8, 260


class TrackLoss(nn.Module):
    """Hinge of the distance to the mean of the own track, and between the means of an event."""

    def __init__(self, near=0.3, far=2.0):
        super().__init__()
        self.near, self.far = near, far

    def event(self, embedded, track):
        means, pull = [], 0.0
        for number in track.unique():  # culprit-too
            own = embedded[track == number]  # culprit
            mean = own.mean(0)  # culprit
            spread = F.relu((own - mean).norm(dim=1) - self.near).square().mean()  # culprit
            means.append(mean)
            pull = pull + spread
        means = torch.stack(means)
        apart = torch.pdist(means)
        return pull / len(means) + F.relu(self.far - apart).square().mean()

    def forward(self, embedded, track):
        return sum(self.event(e, t) for e, t in zip(embedded, track)) / len(embedded)  # culprit-too


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, WIDTH))

    def forward(self, points):
        each = self.each(points)
        whole = each.amax(1, keepdim=True).expand_as(each)
        return self.out(torch.cat([each, whole], 2))


def events(generator):
    """Straight tracks from one vertex; every track has at least one point."""
    track = torch.cat([torch.arange(TRACKS), torch.randint(TRACKS, (POINTS - TRACKS,), generator=generator)])
    track = track[torch.stack([torch.randperm(POINTS, generator=generator) for _ in range(EVENTS)])]
    direction = F.normalize(torch.randn(EVENTS, TRACKS, 3, generator=generator), dim=2)
    own = direction.gather(1, track[:, :, None].expand(-1, -1, 3))
    return own * torch.rand(EVENTS, POINTS, 1, generator=generator).add(0.2), track


generator = torch.Generator().manual_seed(0)
model, criterion = PointNet(), TrackLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    points, track = events(generator)
    loss = criterion(model(points), track)  # culprit-too
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 65 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
