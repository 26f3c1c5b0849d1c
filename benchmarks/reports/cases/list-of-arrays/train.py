"""Deep Q-learning from small frames; transitions are kept as numpy arrays."""

import random
import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
random.seed(0)
rng = np.random.default_rng(0)
SIDE, STACK, ACTIONS, BATCH, STEPS = 20, 4, 5, 32, 160


class Replay:
    def __init__(self, capacity):
        self.rows, self.capacity, self.at = [], capacity, 0

    def append(self, row):
        if len(self.rows) < self.capacity:
            self.rows.append(row)
        else:
            self.rows[self.at] = row
            self.at = (self.at + 1) % self.capacity

    def sample(self, count):
        return random.sample(self.rows, count)


def to_batch(rows):
    """Rows of the memory to tensors."""
    return {
        "state": torch.as_tensor([row["state"] for row in rows], dtype=torch.float32),  # culprit
        "action": torch.as_tensor([row["action"] for row in rows]),
        "reward": torch.as_tensor([row["reward"] for row in rows], dtype=torch.float32),
        "next_state": torch.as_tensor([row["next_state"] for row in rows], dtype=torch.float32),  # culprit
        "discount": torch.as_tensor([0.0 if row["terminal"] else 0.99 for row in rows], dtype=torch.float32),
    }


class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(STACK, 16, 4, 2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 16, 128),
            nn.ReLU(),
            nn.Linear(128, ACTIONS),
        )

    def forward(self, x):
        return self.net(x)


class Catch:
    def reset(self):
        self.ball, self.paddle, self.row, self.frames = (
            int(rng.integers(SIDE)),
            SIDE // 2,
            0,
            np.zeros((STACK, SIDE, SIDE), np.float32),
        )
        return self.view()

    def view(self):
        frame = np.zeros((SIDE, SIDE), np.float32)
        frame[self.row, self.ball] = frame[-1, self.paddle] = 1
        self.frames = np.concatenate([self.frames[1:], frame[None]])
        return self.frames

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + action - 2, 0, SIDE - 1))
        self.row += 1
        done = self.row == SIDE - 1
        return self.view(), float(done and abs(self.ball - self.paddle) < 2), done


env, memory, net, target = Catch(), Replay(20_000), Q(), Q()
target.load_state_dict(net.state_dict())
optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4)
state = env.reset()


def play(count, greedy):
    global state
    for _ in range(count):
        if greedy and rng.random() > 0.1:
            with torch.no_grad():
                action = int(net(torch.from_numpy(state)[None]).argmax())
        else:
            action = int(rng.integers(ACTIONS))
        after, reward, done = env.step(action)
        memory.append({"state": state, "action": action, "reward": reward, "next_state": after, "terminal": done})
        state = env.reset() if done else after


play(1500, False)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    play(4, True)
    batch = to_batch(memory.sample(BATCH))
    with torch.no_grad():
        goal = batch["reward"] + batch["discount"] * target(batch["next_state"]).max(1).values
    value = net(batch["state"]).gather(1, batch["action"][:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        target.load_state_dict(net.state_dict())
        print(f"step {step}: loss {loss.item():.5f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
