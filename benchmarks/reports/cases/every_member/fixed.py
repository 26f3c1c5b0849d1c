"""Model-based policy search: imagined rollouts through an ensemble of dynamics models, a critic and a policy on top."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(12)
torch.set_num_threads(1)
STATE, ACTION, MEMBERS, IMAGINED, HORIZON, STEPS = 8, 2, 7, 600, 4, 350


def mlp(into, out, width):
    return nn.Sequential(nn.Linear(into, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, out))


class World:
    """The true system, of which the ensemble sees noisy transitions."""

    def __init__(self, generator):
        self.drift = torch.randn(STATE, STATE, generator=generator) * 0.15
        self.push = torch.randn(ACTION, STATE, generator=generator) * 0.3
        self.generator = generator

    def step(self, state, action):
        following = state + torch.tanh(state @ self.drift + action @ self.push)
        return 0.95 * following + 0.01 * torch.randn(state.shape, generator=self.generator)

    def random_batch(self, count):
        state = torch.randn(count, STATE, generator=self.generator)
        action = torch.rand(count, ACTION, generator=self.generator) * 2 - 1
        return state, action, self.step(state, action)


class Ensemble(nn.Module):
    """Gaussian models of the next state; each imagined particle follows a member drawn at random."""

    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(mlp(STATE + ACTION, 2 * STATE, 128) for _ in range(MEMBERS))

    def loss(self, state, action, following):
        joined, total = torch.cat([state, action], 1), 0.0
        for member in self.members:
            mean, log_std = member(joined).chunk(2, 1)
            total = total + F.gaussian_nll_loss(state + mean, following, (2 * log_std.clamp(-4, 1)).exp())
        return total

    @torch.no_grad()
    def sample(self, state, action):
        joined = torch.cat([state, action], 1)
        outputs = torch.empty(len(state), 2 * STATE)
        for member, rows in zip(self.members, torch.randperm(len(state)).chunk(MEMBERS)):
            outputs[rows] = member(joined[rows])
        mean, log_std = outputs.chunk(2, 1)
        return (state + mean + log_std.clamp(-4, 0).exp() * torch.randn_like(mean)).clamp(-3, 3)


class Agent:
    def __init__(self):
        self.policy, self.critic = mlp(STATE, ACTION, 64), mlp(STATE + ACTION, 1, 64)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3)

    def act(self, state):
        return torch.tanh(self.policy(state))

    def value(self, state, action):
        return self.critic(torch.cat([state, action], 1)).squeeze(1)

    def imagine(self, ensemble, state):
        """Rolls the policy out in the ensemble: first states and actions, with the return up to the horizon."""
        with torch.no_grad():
            first_action = action = (self.act(state) + 0.2 * torch.randn(len(state), ACTION)).clamp(-1, 1)
            first, total = state, 0.0
            for t in range(HORIZON):
                state = ensemble.sample(state, action)
                total = total - 0.95**t * state.square().mean(1)
                action = self.act(state)
            return first, first_action, total

    def learn(self, state, action, target):
        critic_loss = F.mse_loss(self.value(state, action), target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        policy_loss = -self.value(state, self.act(state)).mean()
        self.policy_optimizer.zero_grad()
        policy_loss.backward()
        self.policy_optimizer.step()
        return critic_loss


world, ensemble, agent = World(torch.Generator().manual_seed(0)), Ensemble(), Agent()
optimizer = torch.optim.Adam(ensemble.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    model_loss = ensemble.loss(*world.random_batch(64))
    optimizer.zero_grad()
    model_loss.backward()
    optimizer.step()
    critic_loss = agent.learn(*agent.imagine(ensemble, torch.randn(IMAGINED, STATE)))
    if step % 50 == 0:
        print(f"step {step}: model {model_loss.item():.3f} critic {critic_loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
