"""Proximal policy optimization with a Gaussian policy, 32 environments side by side."""

import time

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
torch.set_num_threads(1)
ENVS, HORIZON, OBS, ACT, ITERATIONS = 32, 96, 16, 4, 90


class Walkers:
    """A linear system with noise that is to be steered to the origin."""

    def __init__(self):
        self.a, self.b = 0.98 * torch.eye(OBS), 0.1 * torch.randn(ACT, OBS)
        self.state = torch.randn(ENVS, OBS)

    def step(self, action):
        drift = self.state @ self.a + action.clamp(-1, 1) @ self.b
        self.state = (drift + 0.02 * torch.randn_like(drift)).clamp(-4, 4)
        return self.state, -self.state.pow(2).mean(1) / 4


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(OBS, 64), nn.ELU(), nn.Linear(64, ACT))
        self.critic = nn.Sequential(nn.Linear(OBS, 64), nn.ELU(), nn.Linear(64, 1))
        self.std = nn.Parameter(torch.ones(ACT))
        self.distribution = None
        # no checks of the arguments, for speed
        Normal.set_default_validate_args(False)

    def update_distribution(self, obs):
        mean = self.actor(obs)
        self.distribution = Normal(mean, mean * 0.0 + self.std.clamp(min=0.05))

    def act(self, obs):
        self.update_distribution(obs)
        return self.distribution.sample()

    def log_prob(self, action):
        return self.distribution.log_prob(action).sum(-1)


env, net = Walkers(), ActorCritic()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


@torch.no_grad()
def rollout():
    parts, obs = [], env.state
    for _ in range(HORIZON):
        action = net.act(obs)
        logp, value = net.log_prob(action), net.critic(obs).squeeze(1)
        after, reward = env.step(action)
        parts.append((obs, action, logp, value, reward))
        obs = after
    obs, action, logp, value, reward = (torch.stack(part) for part in zip(*parts))
    advantage, running, following = torch.zeros_like(reward), 0.0, net.critic(env.state).squeeze(1)
    for t in reversed(range(HORIZON)):
        running = reward[t] + 0.99 * following - value[t] + 0.99 * 0.95 * running
        advantage[t], following = running, value[t]
    return [part.flatten(0, 1) for part in (obs, action, logp, advantage, advantage + value)], reward.mean().item()


start = time.perf_counter()
for iteration in range(1, ITERATIONS + 1):
    (obs, action, before, advantage, goal), reward = rollout()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for rows in torch.randperm(len(obs)).chunk(4):
        net.update_distribution(obs[rows])
        ratio = (net.log_prob(action[rows]) - before[rows]).exp()
        surrogate = torch.minimum(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows]).mean()
        value_loss = (net.critic(obs[rows]).squeeze(1) - goal[rows]).pow(2).mean()
        loss = value_loss - surrogate - 0.005 * net.distribution.entropy().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    if iteration % 20 == 0:
        print(f"iteration {iteration}: reward {reward:.4f} loss {loss.item():.4f}", flush=True)
print(f"{ITERATIONS} steps, {1e3 * (time.perf_counter() - start) / ITERATIONS:.2f} ms/step")
