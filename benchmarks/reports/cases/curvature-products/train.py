"""Trust region policy optimization: points are steered to the origin, the step comes from conjugate gradients."""

import time

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(0)
torch.set_num_threads(1)
ENVS, HORIZON, CG, DAMPING, LIMIT = 40, 24, 10, 0.1, 0.01


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.log_std = nn.Parameter(torch.zeros(2) - 0.5)

    def forward(self, states):
        return Normal(self.body(states), self.log_std.exp(), validate_args=False)


@torch.no_grad()
def episodes(policy):
    state, states, actions, rewards = torch.randn(ENVS, 4), [], [], []
    for _ in range(HORIZON):
        action = policy(state).sample()
        states.append(state)
        actions.append(action)
        speed = state[:, 2:] + 0.1 * action.clamp(-2, 2)
        state = torch.cat([state[:, :2] + 0.1 * speed, speed], 1)
        rewards.append(-state[:, :2].norm(dim=1))
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
    return torch.cat(states), torch.cat(actions), advantage.flatten()


def product_with_curvature(policy, states, old):
    parameters = list(policy.parameters())

    def product(vector):
        kl = kl_divergence(old, policy(states)).sum(1).mean()  # culprit
        flat = parameters_to_vector(torch.autograd.grad(kl, parameters, create_graph=True))  # culprit
        second = torch.autograd.grad(flat @ vector, parameters)
        return parameters_to_vector([g.contiguous() for g in second]) + DAMPING * vector

    return product


def conjugate_gradient(product, b):
    x, r, p = torch.zeros_like(b), b.clone(), b.clone()
    rr = r @ r
    for _ in range(CG):
        z = product(p)  # culprit-too
        alpha = rr / (p @ z)
        x, r = x + alpha * p, r - alpha * z
        rr, before = r @ r, rr
        p = r + rr / before * p
    return x


def surrogate(policy, states, actions, advantage, before):
    return ((policy(states).log_prob(actions).sum(1) - before).exp() * advantage).mean()


policy = Policy()
start, STEPS = time.perf_counter(), 140
for step in range(1, STEPS + 1):
    states, actions, advantage = episodes(policy)
    with torch.no_grad():
        old = policy(states)
        before = old.log_prob(actions).sum(1)
    gain = surrogate(policy, states, actions, advantage, before)
    gradient = parameters_to_vector(torch.autograd.grad(gain, policy.parameters())).detach()
    product = product_with_curvature(policy, states, old)
    direction = conjugate_gradient(product, gradient)
    size = (2 * LIMIT / (direction @ product(direction)).clamp(min=1e-8)).sqrt()
    theta = parameters_to_vector(policy.parameters()).detach()
    with torch.no_grad():
        for fraction in (1.0, 0.5, 0.25):
            vector_to_parameters(theta + fraction * size * direction, policy.parameters())
            if surrogate(policy, states, actions, advantage, before) > gain:
                break
    if step % 20 == 0:
        print(f"step {step}: distance {states[-ENVS:, :2].norm(dim=1).mean().item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
