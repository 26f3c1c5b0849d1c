"""Imitation of a robot arm: the policy sees a few past states and predicts the next actions."""

import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
torch.set_num_threads(1)
EPISODES, LENGTH, JOINTS, PAST, FUTURE, BATCH, STEPS = 4, 120, 7, 4, 8, 8, 180


class Table:
    """Rows of named columns; what is read goes through a transform."""

    def __init__(self, columns, transform=None):
        self.columns, self.transform = columns, transform

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            found = {key: self.columns[key]}
        elif isinstance(key, int):
            return {name: values[0] for name, values in self[[key]].items()}
        else:
            found = {name: [values[i] for i in key] for name, values in self.columns.items()}
        found = self.transform(found) if self.transform else found
        return found[key] if isinstance(key, str) else found


def to_torch(columns):
    return {name: [torch.as_tensor(value) for value in values] for name, values in columns.items()}


def record():
    """Episodes of an arm that swings towards changing goals."""
    rng = np.random.default_rng(0)
    states, actions, episodes = [], [], []
    for episode in range(EPISODES):
        state, goal = np.zeros(JOINTS, np.float32), rng.normal(size=JOINTS).astype(np.float32)
        for frame in range(LENGTH):
            if frame % 40 == 0:
                goal = rng.normal(size=JOINTS).astype(np.float32)
            action = 0.1 * (goal - state) + 0.01 * rng.normal(size=JOINTS).astype(np.float32)
            states.append(state)
            actions.append(action.astype(np.float32))
            episodes.append(episode)
            state = (state + action).astype(np.float32)
    return Table({"state": states, "action": actions, "episode": episodes}, to_torch)


class Demonstrations(Dataset):
    def __init__(self, table):
        self.table = table
        self.deltas = {"state": range(1 - PAST, 1), "action": range(FUTURE)}

    def __len__(self):
        return len(self.table)

    def window(self, i):
        first = i // LENGTH * LENGTH
        return {
            key: [min(max(i + delta, first), first + LENGTH - 1) for delta in deltas]
            for key, deltas in self.deltas.items()
        }

    def query(self, window):
        found = {}
        for key, rows in window.items():
            column = self.table[key]  # culprit
            found[key] = torch.stack([column[i] for i in rows])
        return found

    def __getitem__(self, i):
        item = self.table[i]
        item.update(self.query(self.window(i)))  # culprit-too
        return item


class Policy(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(PAST * JOINTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width),
            nn.GELU(), nn.Linear(width, FUTURE * JOINTS),
        )

    def forward(self, states):
        return self.body(states.flatten(1)).unflatten(1, (FUTURE, JOINTS))


def cycle(loader):
    while True:
        yield from loader


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
batches = cycle(DataLoader(Demonstrations(record()), batch_size=BATCH, shuffle=True, drop_last=True))
start = time.perf_counter()
for step in range(1, STEPS + 1):
    batch = next(batches)
    loss = F.smooth_l1_loss(policy(batch["state"]), batch["action"])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if step % 60 == 0:
        print(f"step {step}: loss {loss.item():.5f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
