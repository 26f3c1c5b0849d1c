"""An arm that learns to reach for a ball from two camera pictures, eight moves at a time."""

import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)
np.random.seed(2)
SIDE, JOINTS, CHUNK, ARMS, UPDATES = 56, 3, 8, 8, 360


class Arm:
    """A plane arm of three joints and a ball, seen by two cameras."""

    def __init__(self):
        y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j].astype(np.float32)
        self.views = ((x, y), (0.6 * x - 0.8 * y, 0.8 * x + 0.6 * y))

    def reset(self):
        self.angles = np.random.uniform(-1, 1, JOINTS)
        self.ball = np.random.uniform(-0.7, 0.7, 2)
        return self.pictures()

    def points(self):
        turned = np.cumsum(self.angles)
        return np.cumsum(0.33 * np.stack([np.cos(turned), np.sin(turned)], 1), 0)

    def pictures(self):
        """Both cameras' pictures of the joints and the ball, 2 x SIDE x SIDE."""
        seen = np.zeros((2, SIDE, SIDE), np.float32)
        for picture, (x, y) in zip(seen, self.views):
            for px, py in self.points():
                picture += np.exp(-120 * ((x - px) ** 2 + (y - py) ** 2))  # culprit-too
            picture -= np.exp(-80 * ((x - self.ball[0]) ** 2 + (y - self.ball[1]) ** 2))  # culprit-too
        return seen

    def step(self, move):
        self.angles += 0.1 * np.clip(move, -1, 1)
        reward = -np.linalg.norm(self.points()[-1] - self.ball)
        return self.pictures(), reward  # culprit


class Arms:
    """Several arms that move together; a policy sees them again after a chunk of moves."""

    def __init__(self):
        self.arms = [Arm() for _ in range(ARMS)]

    def reset(self):
        return np.stack([arm.reset() for arm in self.arms])

    def step(self, moves):
        seen, rewards = zip(*(arm.step(move) for arm, move in zip(self.arms, moves)))  # culprit-too
        return np.stack(seen), np.array(rewards)

    def chunk_step(self, chunk):
        """The pictures after each of the chunk's moves, and the sum of the rewards."""
        observations, total = [], 0.0
        for moves in chunk.swapaxes(0, 1):
            seen, rewards = self.step(moves)  # culprit
            observations.append(seen)  # culprit-too
            total = total + rewards
        return observations, total


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(2, 12, 5, 2), nn.ReLU(), nn.Conv2d(12, 16, 5, 2), nn.ReLU(), nn.Flatten())
        self.act = nn.Sequential(nn.Linear(16 * 11 * 11, 96), nn.ReLU(), nn.Linear(96, CHUNK * JOINTS + 1))

    def forward(self, seen):
        out = self.act(self.see(seen))
        return torch.tanh(out[:, 1:]).view(-1, CHUNK, JOINTS), out[:, 0]


world, policy = Arms(), Policy()
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
seen, start = world.reset(), time.perf_counter()
for update in range(1, UPDATES + 1):
    mean, value = policy(torch.from_numpy(seen))
    chunk = mean.detach() + 0.3 * torch.randn_like(mean)
    observations, rewards = world.chunk_step(chunk.numpy())  # culprit-too
    seen = observations[-1] if update % 6 else world.reset()
    gain = torch.from_numpy(rewards).float() - value
    loss = (((chunk - mean) ** 2).sum((1, 2)) * gain.detach()).mean() + gain.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 90 == 0:
        print(f"update {update}: reward {rewards.mean():.3f}", flush=True)
print(f"{UPDATES} steps, {1e3 * (time.perf_counter() - start) / UPDATES:.2f} ms/step")
