"""Imitation from a large record of an expert's moves."""
import numpy as np
import torch
from torch import nn


class Record:
    def __init__(self, size):
        self.states = np.random.rand(4096, 24).astype(np.float32)
        self.size = size

    def draw(self, count):
        picked = np.random.randint(0, self.size, count)
        state = torch.from_numpy(self.states[picked % 4096])
        return state, torch.from_numpy(picked % 6)


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    record = Record(600_000)
    net = nn.Sequential(nn.Linear(24, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 6))
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)
    for step in range(150):
        state, move = record.draw(256)
        loss = nn.functional.cross_entropy(net(state), move)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
