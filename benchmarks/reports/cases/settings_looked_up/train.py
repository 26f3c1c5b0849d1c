"""Policy gradient for agents that walk to their goals; the simulator follows a nested configuration."""

import re
import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
AGENTS, HORIZON, UPDATES = 16, 16, 350


class Node:
    """A part of the configuration: attributes, references to other values as ${path}, read-only flags."""

    def __init__(self, content, parent=None):
        self.__dict__.update(_content=dict(content), _parent=parent, _locked=parent is None)

    def _root(self):
        node = self
        while node._parent is not None:  # culprit-too
            node = node._parent
        return node

    def _flag(self):
        node = self
        while node is not None:  # culprit-too
            if node._locked:
                return True
            node = node._parent
        return False

    def __contains__(self, key):
        try:
            return self.__getattr__(key) is not None  # culprit-too
        except AttributeError:
            return False

    def __getattr__(self, key):
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", key):  # culprit-too
            raise AttributeError(key)
        if key not in self._content:
            raise AttributeError(f"{key} is not one of {', '.join(sorted(self._content))}")
        value = self._content[key]
        if isinstance(value, str) and (found := re.fullmatch(r"\$\{(.+)\}", value)):  # culprit-too
            value = self._root()
            for part in found[1].split("."):
                value = getattr(value, part)  # culprit-too
        return Node(value, self) if isinstance(value, dict) else value  # culprit-too

    def __setattr__(self, key, value):
        if self._flag():
            raise AttributeError("the configuration is read-only")
        self._content[key] = value


CONFIG = Node({
    "world": {"width": 10.0, "step": 0.4, "friction": 0.1},
    "task": {
        "reward": {"goal": 5.0, "closer": 1.0, "slack": -0.01, "radius": "${agents.body.radius}"},
        "measures": {"collision": {"cost": -0.2, "margin": "${world.step}"}},
    },
    "agents": {"body": {"radius": 0.6, "speed": "${world.step}", "friction": "${world.friction}"}},
})


class Walkers:
    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        width = config.world.width
        self.place = rng.uniform(0, width, (AGENTS, 2))
        self.goal = rng.uniform(0, width, (AGENTS, 2))

    def observe(self):
        return np.concatenate([self.place, self.goal - self.place], 1).astype(np.float32) / 10

    def walk(self, agent, action):
        body = self.config.agents.body  # culprit
        angle = action * np.pi / 4
        pace = body.speed * (1 - body.friction)  # culprit
        before = np.hypot(*(self.goal[agent] - self.place[agent]))
        to = self.place[agent] + pace * np.array([np.cos(angle), np.sin(angle)])
        inside = np.clip(to, 0, self.config.world.width)  # culprit
        after = np.hypot(*(self.goal[agent] - inside))
        self.place[agent] = inside
        reward = self.config.task.reward.slack + self.config.task.reward.closer * (before - after)  # culprit
        if "collision" in self.config.task.measures and (to != inside).any():  # culprit
            reward += self.config.task.measures.collision.cost
        if after < self.config.task.reward.radius:  # culprit
            reward += self.config.task.reward.goal
            self.goal[agent] = self.rng.uniform(0, self.config.world.width, 2)
        return reward

    def step(self, actions):
        return np.array([self.walk(agent, action) for agent, action in enumerate(actions)], np.float32)  # culprit-too


rng = np.random.default_rng(0)
walkers = Walkers(CONFIG, rng)
policy = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
start = time.perf_counter()
for update in range(1, UPDATES + 1):
    logs, rewards = [], []
    for _ in range(HORIZON):
        logits = policy(torch.from_numpy(walkers.observe())).log_softmax(1)
        noise = torch.from_numpy(rng.gumbel(size=(AGENTS, 8)).astype(np.float32))
        actions = (logits.detach() + noise).argmax(1)
        logs.append(logits.gather(1, actions[:, None]).squeeze(1))
        rewards.append(walkers.step(actions.numpy()))  # culprit-too
    returns = torch.from_numpy(np.cumsum(rewards[::-1], 0)[::-1].copy())
    advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.stack(logs) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 70 == 0:
        print(f"update {update}: reward {np.mean(rewards):.3f}", flush=True)
print(f"{UPDATES} steps, {1e3 * (time.perf_counter() - start) / UPDATES:.2f} ms/step")
