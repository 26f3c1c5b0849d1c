"""DQN on a small simulated task, many environments at once."""

import random
import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
random.seed(0)
rng = np.random.default_rng(0)
STATES = rng.normal(size=(4096, 16)).astype(np.float32)
CAPACITY, BATCH, STEPS = 1_000_000, 512, 400


class Ring:
    """A list that overwrites its oldest entry."""

    def __init__(self, maxlen):
        self.items, self.maxlen, self.at = [], maxlen, 0

    def append(self, item):
        if len(self.items) < self.maxlen:
            self.items.append(item)
        else:
            self.items[self.at] = item
        self.at = (self.at + 1) % self.maxlen

    def __len__(self):
        return len(self.items)


class Memory:
    def __init__(self):
        self.held = Ring(CAPACITY)

    def push(self, *transition):
        self.held.append(transition)

    def sample(self, count):
        picked = random.sample(self.held.items, count)
        state, action, reward, after, done = zip(*picked)
        return (
            torch.from_numpy(STATES[list(state)]),
            torch.tensor(action),
            torch.tensor(reward),
            torch.from_numpy(STATES[list(after)]),
            torch.tensor(done, dtype=torch.float32),
        )


class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.value, self.edge = nn.Linear(256, 1), nn.Linear(256, 6)

    def forward(self, x):
        h = self.trunk(x)
        edge = self.edge(h)
        return self.value(h) + edge - edge.mean(1, keepdim=True)


memory, net, target = Memory(), Q(), Q()
target.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)


def play(count):
    states = rng.integers(0, 4096, count).tolist()
    for s in states:
        memory.push(s, s % 6, float(s % 7) / 7, (s * 31 + 7) % 4096, s % 50 == 0)


def learn():
    state, action, reward, after, done = memory.sample(BATCH)
    with torch.no_grad():
        best = net(after).argmax(1, keepdim=True)
        goal = reward + 0.99 * (1 - done) * target(after).gather(1, best).squeeze(1)
    loss = nn.functional.smooth_l1_loss(net(state).gather(1, action[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10)
    optimizer.step()
    schedule.step()
    return loss


play(450_000)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    play(400)
    loss = learn()
    if step % 100 == 0:
        target.load_state_dict(net.state_dict())
        print(f"step {step} loss {loss.item():.4f} memory {len(memory.held)}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
