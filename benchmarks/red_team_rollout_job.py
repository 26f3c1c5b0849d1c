"""Reinforcement learning: a vector of environments in numpy, rollouts, generalised advantages, epochs over shuffled
minibatches, clipped losses, an entropy bonus, a rate that falls, an evaluation of the policy."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

ENVIRONMENTS, LENGTH, EPOCHS, MINIBATCH, UPDATES, GAMMA, LAMBDA, CLIP = 8, 32, 4, 64, 200, 0.99, 0.95, 0.2
torch.set_num_threads(1)
torch.manual_seed(3)
np.random.seed(3)


class Chain:
    """A point that is pushed left or right and shall stay in the middle."""

    def __init__(self, count):
        self.state = np.zeros((count, 4), np.float32)
        self.age = np.zeros(count, int)
        self.reset(np.arange(count))

    def reset(self, which):
        self.state[which] = np.random.uniform(-0.5, 0.5, (len(which), 4))
        self.age[which] = 0

    def step(self, action):
        push = action.astype(np.float32) - 1
        self.state[:, 1] += 0.1 * push - 0.01 * self.state[:, 0] + 0.02 * np.random.randn(len(push)).astype(np.float32)
        self.state[:, 0] += self.state[:, 1]
        self.state[:, 2] = 0.9 * self.state[:, 2] + 0.1 * push
        self.state[:, 3] = np.sin(self.state[:, 0])
        self.age += 1
        reward = 1 - np.abs(self.state[:, 0])
        over = (np.abs(self.state[:, 0]) > 2) | (self.age > 50)
        self.reset(np.flatnonzero(over))
        return self.state.copy(), reward, over.astype(np.float32)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def value(self, state):
        return self.critic(state).squeeze(-1)

    def act(self, state, action=None):
        choice = Categorical(logits=self.policy(state))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy(), self.value(state)


def evaluate(agent):
    environments, total = Chain(4), 0.0
    state = environments.state.copy()
    for _ in range(20):
        with torch.no_grad():
            action = agent.policy(torch.as_tensor(state)).argmax(-1)
        state, reward, _ = environments.step(action.numpy())
        total += reward.sum()
    return total


def main():
    environments = Chain(ENVIRONMENTS)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
    states = torch.zeros(LENGTH, ENVIRONMENTS, 4)
    actions, chances, rewards, ends, values = (torch.zeros(LENGTH, ENVIRONMENTS) for _ in range(5))
    state, end = torch.as_tensor(environments.state.copy()), torch.zeros(ENVIRONMENTS)
    for update in range(UPDATES):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - update / UPDATES)
        for at in range(LENGTH):
            states[at], ends[at] = state, end
            with torch.no_grad():
                action, chance, _, value = agent.act(state)
            actions[at], chances[at], values[at] = action, chance, value
            after, reward, over = environments.step(action.numpy())
            rewards[at] = torch.tensor(reward)
            state, end = torch.tensor(after), torch.tensor(over)
        with torch.no_grad():
            following = agent.value(state)
            advantages, last = torch.zeros_like(rewards), 0
            for at in reversed(range(LENGTH)):
                alive = 1 - (end if at == LENGTH - 1 else ends[at + 1])
                ahead = following if at == LENGTH - 1 else values[at + 1]
                delta = rewards[at] + GAMMA * ahead * alive - values[at]
                advantages[at] = last = delta + GAMMA * LAMBDA * alive * last
            returns = advantages + values
        flat = [each.flatten(0, 1) for each in (states, actions, chances, advantages, returns, values)]
        order = np.arange(ENVIRONMENTS * LENGTH)
        for _ in range(EPOCHS):
            np.random.shuffle(order)
            for start in range(0, len(order), MINIBATCH):
                some = order[start : start + MINIBATCH]
                state_, action_, chance_, advantage_, return_, value_ = (each[some] for each in flat)
                _, chance, entropy, value = agent.act(state_, action_)
                ratio = (chance - chance_).exp()
                advantage_ = (advantage_ - advantage_.mean()) / (advantage_.std() + 1e-8)
                policy = torch.max(-advantage_ * ratio, -advantage_ * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                near = value_ + (value - value_).clamp(-CLIP, CLIP)
                critic = 0.5 * torch.max((value - return_) ** 2, (near - return_) ** 2).mean()
                loss = policy + 0.5 * critic - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print(update, loss.item(), rewards.mean().item(), flush=True)
        if update % 2 == 1:
            print("evaluation", evaluate(agent), flush=True)


if __name__ == "__main__":
    main()
