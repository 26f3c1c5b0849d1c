"""Actor and critic: many small mazes are played at the same time."""

import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
torch.set_num_threads(1)
GAMES, HORIZON, SIDE, UPDATES, MOVES = 24, 8, 6, 130, ((0, 1), (0, -1), (1, 0), (-1, 0))


class Maze:
    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.place, self.goal = self.rng.integers(SIDE, size=2), self.rng.integers(SIDE, size=2)

    def observe(self):
        board = np.zeros((2, SIDE, SIDE), np.float32)
        board[0, self.place[0], self.place[1]] = board[1, self.goal[0], self.goal[1]] = 1
        return board.ravel()

    def step(self, action):
        self.place = np.clip(self.place + MOVES[action], 0, SIDE - 1)
        found = bool((self.place == self.goal).all())
        if found:
            self.reset()
        return 1.0 if found else -0.02


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * SIDE * SIDE, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.actor, self.critic = nn.Linear(128, len(MOVES)), nn.Linear(128, 1)

    def forward(self, boards):
        x = self.body(boards)
        return self.actor(x), self.critic(x).squeeze(-1)


def act(agent, mazes, noise):
    """One move in each maze: what was seen, done and earned."""
    boards, actions, logs, values, rewards = [], [], [], [], []
    for maze, luck in zip(mazes, noise):  # culprit-too
        board = torch.from_numpy(maze.observe())
        logits, value = agent(board[None])  # culprit
        policy = Categorical(logits=logits)  # culprit
        action = (policy.logits + luck).argmax(1)
        boards.append(board)
        actions.append(action)
        logs.append(policy.log_prob(action))  # culprit-too
        values.append(value)
        rewards.append(maze.step(action.item()))
    return torch.stack(boards), torch.cat(actions), torch.cat(logs), torch.cat(values), torch.tensor(rewards)


rng = np.random.default_rng(0)
mazes, agent = [Maze(rng) for _ in range(GAMES)], Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=7e-4)
earned, start = [], time.perf_counter()
for update in range(1, UPDATES + 1):
    noise = torch.from_numpy(rng.gumbel(size=(HORIZON, GAMES, len(MOVES))).astype(np.float32))
    with torch.no_grad():
        played = [act(agent, mazes, luck) for luck in noise]  # culprit-too
        future = agent(torch.from_numpy(np.stack([maze.observe() for maze in mazes])))[1]
    boards, actions, logs, values, rewards = (torch.stack(each) for each in zip(*played))
    earned.append(rewards.mean().item())
    returns = torch.empty_like(rewards)
    for t in reversed(range(HORIZON)):
        future = returns[t] = rewards[t] + 0.95 * future
    advantages = returns - values
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    for _ in range(4):
        logits, guesses = agent(boards)
        policy = Categorical(logits=logits)
        ratio = (policy.log_prob(actions) - logs).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        loss = 0.5 * (guesses - returns).square().mean() - gain - 0.03 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if update % 26 == 0:
        print(f"update {update}: reward {np.mean(earned[-26:]):.3f}", flush=True)
print(f"{UPDATES} steps, {1e3 * (time.perf_counter() - start) / UPDATES:.2f} ms/step")
