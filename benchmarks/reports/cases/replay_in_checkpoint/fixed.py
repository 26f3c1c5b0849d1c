"""Carts that learn to come to rest, off-policy, with snapshots to resume from."""

import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(11)
torch.set_num_threads(1)
np.random.seed(11)
CARTS, SEEN, MOVES, WIDTH, BATCH, UPDATES, EPOCHS = 16, 32, 2, 192, 192, 16, 50


class Pool:
    """Experience of the whole run: what was seen, the moves, the reward, and what was seen then."""

    def __init__(self):
        self.samples = []

    def add(self, samples):
        self.samples.extend(samples)

    def batch(self):
        chosen = [self.samples[i] for i in np.random.randint(len(self.samples), size=BATCH)]
        return [torch.from_numpy(np.array(values, np.float32)) for values in zip(*chosen)]


class Carts:
    """What is seen of each cart is a fixed mixture of its place and speed."""

    def __init__(self):
        self.eye = np.random.randn(4, SEEN).astype(np.float32)
        self.reset()

    def reset(self):
        self.state = np.random.randn(CARTS, 4).astype(np.float32)

    def look(self):
        return np.tanh(self.state @ self.eye)

    def run(self, policy, steps):
        seen = self.look()
        for _ in range(steps):
            with torch.no_grad():
                moves = policy(torch.from_numpy(seen)).numpy() + 0.2 * np.random.randn(CARTS, MOVES).astype(np.float32)
            self.state[:, 2:] += 0.1 * moves
            self.state[:, :2] += 0.1 * self.state[:, 2:]
            self.state = np.clip(self.state, -2, 2)
            then, rewards = self.look(), -np.square(self.state).sum(1)
            yield from zip(seen, moves, rewards, then)
            seen = then


class Learner:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(SEEN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, MOVES), nn.Tanh())
        self.value = nn.Sequential(
            nn.Linear(SEEN + MOVES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
        )
        self.for_policy = torch.optim.Adam(self.policy.parameters(), 3e-4)
        self.for_value = torch.optim.Adam(self.value.parameters(), 1e-3)

    def worth(self, seen, moves):
        return self.value(torch.cat([seen, moves], 1)).squeeze(1)

    def update(self, seen, moves, rewards, then):
        with torch.no_grad():
            target = rewards + 0.9 * self.worth(then, self.policy(then))
        error = F.mse_loss(self.worth(seen, moves), target)
        self.for_value.zero_grad()
        error.backward()
        self.for_value.step()
        loss = -self.worth(seen, self.policy(seen)).mean()
        self.for_policy.zero_grad()
        loss.backward()
        self.for_policy.step()
        return error.item()


class Snapshots:
    """Everything that is needed to go on after a crash."""

    def __init__(self, folder, learner, pool):
        self.folder, self.learner, self.pool, self.saved = folder, learner, pool, 0

    def save(self, epoch):
        weights = [self.learner.policy.state_dict(), self.learner.value.state_dict()]
        (self.folder / "learner.pkl").write_bytes(pickle.dumps((epoch, weights)))
        (self.folder / f"pool{epoch}.pkl").write_bytes(pickle.dumps(self.pool.samples[self.saved :]))
        self.saved = len(self.pool.samples)


with tempfile.TemporaryDirectory() as name:
    carts, pool, learner = Carts(), Pool(), Learner()
    snapshots = Snapshots(Path(name), learner, pool)
    pool.add(carts.run(learner.policy, 250))
    steps, start = 0, time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        carts.reset()
        pool.add(carts.run(learner.policy, 20))
        for _ in range(UPDATES):
            error = learner.update(*pool.batch())
            steps += 1
        snapshots.save(epoch)
        if epoch % 10 == 0:
            print(f"epoch {epoch}: error {error:.4f}", flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")
