"""Latent world model trained on slices of trajectories out of a large replay storage."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
OBS, ACT, HORIZON, SLICES, STEPS = 12, 4, 4, 192, 300


class Storage:
    def __init__(self, capacity):
        self.obs = torch.zeros(capacity, OBS)
        self.act = torch.zeros(capacity, ACT)
        self.rew = torch.zeros(capacity, 1)
        self.episode = torch.full((capacity,), -1, dtype=torch.int64)
        self.size, self.version = 0, 0

    def extend(self, obs, act, rew, episode):
        here = slice(self.size, self.size + len(obs))
        self.obs[here], self.act[here], self.rew[here], self.episode[here] = obs, act, rew, episode
        self.size += len(obs)
        self.version += 1


class SliceSampler:
    """Picks slices of equal length that lie within one episode."""

    def __init__(self, storage):
        self.storage, self.known = storage, None

    def bounds(self):
        ids = self.storage.episode[: self.storage.size]
        change = torch.ones(len(ids), dtype=torch.bool)
        change[1:] = ids[1:] != ids[:-1]  # culprit-too
        first = change.nonzero().squeeze(1)  # culprit-too
        last = torch.cat([first[1:], torch.tensor([len(ids)])])
        return first, last - first

    def sample(self, count, length):
        first, lengths = self.bounds()  # culprit
        usable = lengths >= length
        first, lengths = first[usable], lengths[usable]
        pick = torch.randint(len(first), (count,))
        offset = (torch.rand(count) * (lengths[pick] - length + 1)).long()
        return (first[pick] + offset)[:, None] + torch.arange(length)


def block(a, b):
    return nn.Sequential(nn.Linear(a, 128), nn.LayerNorm(128), nn.Mish(), nn.Linear(128, b))


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.dynamics, self.reward = block(OBS, 64), block(64 + ACT, 64), block(64 + ACT, 1)

    def loss(self, obs, act, rew):
        z, total = self.encoder(obs[:, 0]), 0.0
        with torch.no_grad():
            goals = self.encoder(obs[:, 1:])
        for t in range(HORIZON):
            za = torch.cat([z, act[:, t]], -1)
            z = self.dynamics(za)
            total = total + 0.5**t * (
                nn.functional.mse_loss(z, goals[:, t]) + (self.reward(za) - rew[:, t]).pow(2).mean()
            )
        return total


storage, count = Storage(2_600_000), 0


def collect(episodes, length=250):
    global count
    n = episodes * length
    obs = torch.randn(n, OBS).cumsum(0).remainder(3)
    storage.extend(
        obs, torch.rand(n, ACT) * 2 - 1, obs[:, :1] / 3, torch.arange(count, count + episodes).repeat_interleave(length)
    )
    count += episodes


for _ in range(10):
    collect(1000)
sampler, model = SliceSampler(storage), WorldModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    rows = sampler.sample(SLICES, HORIZON + 1)
    loss = model.loss(storage.obs[rows], storage.act[rows], storage.rew[rows])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 20)
    optimizer.step()
    if step % 50 == 0:
        collect(4)
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
