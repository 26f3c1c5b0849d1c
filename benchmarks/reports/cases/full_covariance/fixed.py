"""PPO with a Gaussian policy: many thrusters keep point masses near targets that move."""

import time

import torch
from torch import nn
from torch.distributions import Independent, Normal

torch.manual_seed(11)
torch.set_num_threads(1)
ENVS, ROLLOUT, ACTIONS, ITERATIONS, EPOCHS, BATCH = 48, 32, 14, 40, 5, 256


class Targets:
    """Point masses in ACTIONS dimensions; the reward is minus the distance to a target that drifts."""

    def reset(self):
        self.place, self.speed = torch.zeros(ENVS, ACTIONS), torch.zeros(ENVS, ACTIONS)
        self.target = torch.randn(ENVS, ACTIONS)
        return self.observe()

    def observe(self):
        return torch.cat([self.target - self.place, self.speed, self.target], 1)

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.1 * action.clamp(-1, 1)
        self.place = (self.place + 0.2 * self.speed).clamp(-2, 2)
        self.target = self.target + 0.02 * torch.randn_like(self.target)
        return self.observe(), -(self.place - self.target).square().mean(1)


def mlp(out, width=64):
    return nn.Sequential(
        nn.Linear(3 * ACTIONS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out)
    )


class ActorCritic(nn.Module):
    def __init__(self, action_std=0.6):
        super().__init__()
        self.actor, self.critic = mlp(ACTIONS), mlp(1)
        self.set_action_std(action_std)

    def set_action_std(self, action_std):
        self.action_std = torch.full((ACTIONS,), action_std)

    def distribution(self, states):
        mean = self.actor(states)
        return Independent(Normal(mean, self.action_std.expand_as(mean)), 1)

    def act(self, states):
        policy = self.distribution(states)
        action = policy.sample()
        return action, policy.log_prob(action)

    def evaluate(self, states, actions):
        policy = self.distribution(states)
        return policy.log_prob(actions), self.critic(states).squeeze(1), policy.entropy()


@torch.no_grad()
def rollout(env, policy):
    state, kept = env.reset(), []
    for _ in range(ROLLOUT):
        action, log_prob = policy.act(state)
        following, reward = env.step(action)
        kept.append((state, action, log_prob, reward))
        state = following
    states, actions, log_probs, rewards = (torch.stack(column) for column in zip(*kept))
    returns, future = torch.empty_like(rewards), torch.zeros(ENVS)
    for t in reversed(range(ROLLOUT)):
        returns[t] = future = rewards[t] + 0.95 * future
    returns = (returns - returns.mean()) / (returns.std() + 1e-7)
    return [x.flatten(0, 1) for x in (states, actions, log_probs, returns)], rewards.mean().item()


env, policy = Targets(), ActorCritic()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
start, steps = time.perf_counter(), 0
for iteration in range(1, ITERATIONS + 1):
    (states, actions, old, returns), reward = rollout(env, policy)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(states)).split(BATCH):
            log_probs, values, entropy = policy.evaluate(states[rows], actions[rows])
            ratio = torch.exp(log_probs - old[rows])
            advantage = returns[rows] - values.detach()
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = (-surrogate + 0.5 * (values - returns[rows]).square() - 0.01 * entropy).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    policy.set_action_std(max(0.1, 0.6 - 0.01 * iteration))
    if iteration % 10 == 0:
        print(f"iteration {iteration}: reward {reward:.4f} loss {loss.item():.4f}", flush=True)
print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")
