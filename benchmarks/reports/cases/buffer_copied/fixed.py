"""Goal-conditioned learning with a buffer of episodes."""
import numpy as np
import torch
from torch import nn


class Episodes:
    def __init__(self, most, length, width):
        self.data = {name: np.zeros((most, length, width), dtype=np.float32) for name in ("obs", "goal", "act")}
        self.count = 0

    def store(self, episodes):
        for name, values in episodes.items():
            self.data[name][self.count : self.count + len(values)] = values
        self.count += len(next(iter(episodes.values())))

    def sample(self, size):
        held = {}
        for name, values in self.data.items():
            held[name] = values[: self.count]
        which = np.random.randint(0, self.count, size)
        when = np.random.randint(0, held["obs"].shape[1], size)
        return {name: torch.from_numpy(values[which, when]) for name, values in held.items()}


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    memory = Episodes(3000, 50, 16)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(200):
        fresh = np.random.rand(12, 50, 16).astype(np.float32)
        memory.store({"obs": fresh, "goal": fresh[:, ::-1], "act": 0.5 * fresh})
        batch = memory.sample(256)
        guess = net(torch.cat([batch["obs"], batch["goal"]], 1))
        loss = nn.functional.mse_loss(guess, batch["act"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
