"""Deep Q-learning with prioritized replay: a paddle catches falling fruit."""

import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
ROWS, COLUMNS, CAPACITY, WARM_UP, BATCH, STEPS = 9, 8, 32768, 2000, 192, 1800


class Catch:
    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.row, self.column, self.paddle = 0, int(self.rng.integers(COLUMNS)), COLUMNS // 2
        return self.observe()

    def observe(self):
        board = np.zeros((ROWS, COLUMNS), np.float32)
        board[self.row, self.column] = 1
        board[-1, self.paddle] = 1
        return board.ravel()

    def step(self, action):
        self.paddle = min(max(self.paddle + action - 1, 0), COLUMNS - 1)
        self.row += 1
        done = self.row == ROWS - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if done else 0.0
        return self.reset() if done else self.observe(), reward, done


class SegmentTree:
    """Sums of priorities in a binary tree, the leaves in its last level."""

    def __init__(self, size):
        self.size, self.tree, self.max = size, np.zeros(2 * size - 1, np.float32), 1.0

    def update(self, leaf, value):
        node = leaf + self.size - 1
        self.tree[node] = value  # culprit-too
        while node > 0:  # culprit-too
            node = (node - 1) // 2
            self.tree[node] = self.tree[2 * node + 1] + self.tree[2 * node + 2]  # culprit
        self.max = max(value, self.max)

    def find(self, value):
        node = 0
        while node < self.size - 1:  # culprit-too
            left = 2 * node + 1
            if value <= self.tree[left]:  # culprit
                node = left
            else:
                value -= self.tree[left]
                node = left + 1
        return node - self.size + 1

    def total(self):
        return self.tree[0]


class ReplayMemory:
    def __init__(self, rng, alpha=0.5):
        self.rng, self.alpha, self.next = rng, alpha, 0
        self.tree = SegmentTree(CAPACITY)
        self.states = np.zeros((CAPACITY, ROWS * COLUMNS), np.float32)
        self.following = np.zeros_like(self.states)
        self.actions = np.zeros(CAPACITY, np.int64)
        self.rewards, self.going = np.zeros((2, CAPACITY), np.float32)

    def append(self, state, action, reward, following, done):
        i = self.next % CAPACITY
        self.states[i], self.following[i], self.actions[i] = state, following, action
        self.rewards[i], self.going[i] = reward, 1.0 - done
        self.tree.update(i, self.tree.max)
        self.next += 1

    def sample(self, count):
        stretch = self.tree.total() / count
        drawn = (np.arange(count) + self.rng.random(count)) * stretch
        rows = np.array([self.tree.find(value) for value in drawn])  # culprit-too
        rows = np.minimum(rows, min(self.next, CAPACITY) - 1)
        columns = self.states, self.actions, self.rewards, self.following, self.going
        return rows, [torch.from_numpy(column[rows]) for column in columns]

    def set_priorities(self, rows, errors):
        for row, priority in zip(rows, errors**self.alpha):
            self.tree.update(row, priority)  # culprit-too


def network():
    return nn.Sequential(nn.Linear(ROWS * COLUMNS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


rng = np.random.default_rng(1)
env, memory, online, target = Catch(rng), ReplayMemory(rng), network(), network()
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
state, caught, start = env.observe(), [], time.perf_counter()
for step in range(1 - WARM_UP, STEPS + 1):
    if step == 1:
        start = time.perf_counter()
    if step < 1 or rng.random() < 0.1:
        action = int(rng.integers(3))
    else:
        with torch.no_grad():
            action = online(torch.from_numpy(state)).argmax().item()
    following, reward, done = env.step(action)
    memory.append(state, action, reward, following, done)
    state = following
    if done:
        caught.append(reward > 0)
    if step < 1:
        continue
    rows, (states, actions, rewards, nexts, going) = memory.sample(BATCH)  # culprit-too
    with torch.no_grad():
        best = online(nexts).argmax(1, keepdim=True)
        goal = rewards + 0.95 * going * target(nexts).gather(1, best).squeeze(1)
    errors = goal - online(states).gather(1, actions[:, None]).squeeze(1)
    optimizer.zero_grad()
    errors.square().mean().backward()
    optimizer.step()
    memory.set_priorities(rows, errors.detach().abs().add(1e-3).numpy())  # culprit-too
    if step % 100 == 0:
        target.load_state_dict(online.state_dict())
    if step % 500 == 0:
        print(f"step {step}: caught {np.mean(caught[-50:]):.2f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
