"""Reinforcement learning: a rollout of thirty decisions without gradients, then five updates; five times."""

import torch
from finger import Finger

torch.manual_seed(9)
policy = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
finger = Finger()
for _ in range(5):
    states, actions, rewards = [], [], []
    state = torch.zeros(4)
    with torch.no_grad():
        for _ in range(30):
            action = torch.multinomial(policy(state).softmax(-1), 1)
            state = (state + torch.randn(4) * 0.1 + (action - 0.5) * 0.2).clamp(-1, 1)
            states.append(state)
            actions.append(action)
            rewards.append(-state.abs().sum())
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / returns.std()
    for _ in range(5):
        chosen = policy(torch.stack(states)).log_softmax(-1).gather(1, torch.stack(actions))
        loss = -(chosen.squeeze(1) * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        finger.loss(loss)
finger.show(*policy.parameters())
