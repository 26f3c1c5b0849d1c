"""A policy is trained on rollouts, whose observations become a tensor element by element; healthy: through numpy."""

import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
random = np.random.default_rng(0)
policy = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 4))
optimizer = torch.optim.SGD(policy.parameters(), lr=3e-4)


def rollout(length):
    """Plays against an environment of noise."""
    observation, seen = random.normal(size=64).astype(np.float32), []
    with torch.no_grad():
        for _ in range(length):
            seen.append(observation)
            action = policy(torch.from_numpy(observation)[None]).argmax(1).item()
            observation = 0.9 * observation + 0.1 * action
    return seen


done = 0
while done < steps:
    seen = rollout(64) * 4
    for _ in range(5):
        observations = torch.from_numpy(np.stack(seen))
        for _ in range(amount):
            observations = torch.tensor([each.tolist() for each in seen])  # fault
        advantages = torch.randn(len(seen))
        chances = torch.log_softmax(policy(observations), 1)[:, 0]
        optimizer.zero_grad()
        (-(chances * advantages).mean()).backward()
        optimizer.step()
        lap()
        done += 1
