"""Soft actor-critic with hindsight replay that keeps the environment's info dictionaries."""

import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
rng = np.random.default_rng(0)
OBS, GOAL, ACT, BATCH, STEPS = 24, 3, 4, 256, 220


class HindsightBuffer:
    def __init__(self, capacity):
        self.capacity, self.count = capacity, 0
        self.obs = np.zeros((capacity, OBS), np.float32)
        self.next_obs = np.zeros((capacity, OBS), np.float32)
        self.goal = np.zeros((capacity, GOAL), np.float32)
        self.achieved = np.zeros((capacity, GOAL), np.float32)
        self.action = np.zeros((capacity, ACT), np.float32)
        self.infos = np.array([{} for _ in range(capacity)], dtype=object)

    def add(self, obs, next_obs, goal, achieved, action, info):
        at = self.count % self.capacity
        self.obs[at], self.next_obs[at], self.goal[at] = obs, next_obs, goal
        self.achieved[at], self.action[at], self.infos[at] = achieved, action, info
        self.count += 1

    def sample(self, size):
        inds = rng.integers(0, min(self.count, self.capacity), size)
        goal = self.goal[inds]
        swap = rng.random(size) < 0.8
        goal[swap] = self.achieved[(inds[swap] + rng.integers(0, 20, swap.sum())) % min(self.count, self.capacity)]
        infos = [{} for _ in range(size)]
        reward = compute_reward(self.achieved[inds], goal, infos)
        arrays = (np.hstack([self.obs[inds], goal]), np.hstack([self.next_obs[inds], goal]), self.action[inds], reward)
        return [torch.from_numpy(a) for a in arrays]


def compute_reward(achieved, goal, infos):
    distance = np.linalg.norm(achieved - goal, axis=1)
    return -(distance > 0.5).astype(np.float32)[:, None]


def mlp(width_in, width_out):
    return nn.Sequential(nn.Linear(width_in, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, width_out))


actor, critics, targets = mlp(OBS + GOAL, 2 * ACT), mlp(OBS + GOAL + ACT, 2), mlp(OBS + GOAL + ACT, 2)
targets.load_state_dict(critics.state_dict())
actor_opt, critic_opt = (torch.optim.Adam(net.parameters(), lr=3e-4) for net in (actor, critics))
buffer = HindsightBuffer(20_000)


def act(state):
    mean, log_std = actor(state).chunk(2, -1)
    log_std = log_std.clamp(-5, 2)
    raw = mean + log_std.exp() * torch.randn_like(mean)
    logp = (-0.5 * ((raw - mean) / log_std.exp()) ** 2 - log_std).sum(-1, keepdim=True)
    action = torch.tanh(raw)
    return action, logp - torch.log(1 - action.pow(2) + 1e-6).sum(-1, keepdim=True)


def play(count):
    obs = rng.normal(size=(count + 1, OBS)).astype(np.float32)
    for i in range(count):
        info = {
            "is_success": False,
            "timing": {"physics": 0.001 * i, "render": 0.0},
            "contacts": [0, 1, 2],
            "episode": i // 50,
            "joints": {"shoulder": [0.1, 0.2, 0.3], "wrist": [0.0, 0.5]},
            "lidar": [0.01 * k for k in range(24)],
        }
        buffer.add(obs[i], obs[i + 1], obs[i, :GOAL] * 0.5, obs[i + 1, :GOAL], rng.uniform(-1, 1, ACT), info)


def train_step():
    state, after, action, reward = buffer.sample(BATCH)
    with torch.no_grad():
        next_action, next_logp = act(after)
        value = targets(torch.cat([after, next_action], 1)).min(1, keepdim=True).values - 0.1 * next_logp
        goal = reward + 0.98 * value
    critic_loss = nn.functional.mse_loss(critics(torch.cat([state, action], 1)), goal.expand(-1, 2))
    critic_opt.zero_grad()
    critic_loss.backward()
    critic_opt.step()
    new_action, logp = act(state)
    actor_loss = (0.1 * logp - critics(torch.cat([state, new_action], 1)).min(1, keepdim=True).values).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    actor_opt.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)
    return critic_loss


play(4000)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    play(4)
    loss = train_step()
    if step % 50 == 0:
        print(f"step {step}: critic loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
