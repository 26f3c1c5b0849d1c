"""Q-learning on a synthetic chain, with a replay buffer that fills while it trains."""
import random

import torch
from torch import nn


class Replay:
    def __init__(self, size):
        self.items, self.size, self.next = [], size, 0

    def add(self, transitions):
        for each in transitions:
            if len(self.items) < self.size:
                self.items.append(each)
            else:
                self.items[self.next] = each
            self.next = (self.next + 1) % self.size

    def sample(self, count):
        picked = random.sample(self.items, count)
        state, action, reward, after = zip(*picked)
        return torch.stack(state), torch.tensor(action), torch.tensor(reward), torch.stack(after)


def explore(states, count):
    first = random.randrange(len(states) - count - 1)
    return [(states[first + k], k % 4, float(k % 7 == 0), states[first + k + 1]) for k in range(count)]


def main():
    torch.manual_seed(0)
    random.seed(0)
    states = list(torch.randn(8192, 16))
    net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    memory = Replay(2_000_000)
    for step in range(250):
        memory.add(explore(states, 4000))
        state, action, reward, after = memory.sample(256)
        with torch.no_grad():
            target = reward + 0.9 * net(after).max(1).values
        value = net(state).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}, {len(memory.items)} transitions", flush=True)


if __name__ == "__main__":
    main()
