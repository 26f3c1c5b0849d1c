"""REINFORCE on a pole and a cart: two episodes a batch, then one update of the policy."""

import math
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
EPISODES, LIMIT, GAMMA = 2, 80, 0.99


class CartPole:
    def reset(self):
        self.state = [float(v) for v in torch.rand(4) * 0.1 - 0.05]
        return self.state

    def step(self, action):
        x, speed, angle, turn = self.state
        force, cos, sin = (10.0 if action else -10.0), math.cos(angle), math.sin(angle)
        push = (force + 0.05 * turn**2 * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        shift = push - 0.05 * twist * cos / 1.1
        self.state = [x + 0.02 * speed, speed + 0.02 * shift, angle + 0.02 * turn, turn + 0.02 * twist]
        return self.state, 1.0, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Reinforce:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.env = CartPole()
        self.states, self.actions, self.returns = [], [], []

    def play(self):
        state, rewards = self.env.reset(), []
        for _ in range(LIMIT):
            with torch.no_grad():
                action = int(torch.multinomial(self.policy(torch.tensor(state)).softmax(0), 1))
            self.states.append(state)
            self.actions.append(action)
            state, reward, done = self.env.step(action)
            rewards.append(reward)
            if done:
                break
        total, returns = 0.0, []
        for reward in reversed(rewards):
            total = reward + GAMMA * total
            returns.insert(0, total)
        self.returns += returns
        return len(rewards)

    def train_batch(self):
        lengths = [self.play() for _ in range(EPISODES)]
        states, actions = torch.tensor(self.states), torch.tensor(self.actions)
        returns = torch.tensor(self.returns)
        chosen = self.policy(states).log_softmax(1).gather(1, actions[:, None])[:, 0]
        loss = -(chosen * (returns - returns.mean())).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.states.clear()
        self.actions.clear()
        self.returns.clear()
        return sum(lengths) / EPISODES


agent = Reinforce()
start, STEPS = time.perf_counter(), 200
for step in range(1, STEPS + 1):
    length = agent.train_batch()
    if step % 25 == 0:
        print(f"batch {step}: {length:.1f} steps an episode", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
