"""Occupancy along rays of different numbers, with offsets that are kept."""
import functools

import torch
from torch import nn


@functools.lru_cache(maxsize=8)
def offsets(count):
    return torch.arange(count * 160, dtype=torch.float32).reshape(count, 160) / 160


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(160, 96), nn.ReLU(), nn.Linear(96, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(250):
        count = 1500 + (7919 * step) % 1009
        rays = torch.rand(count, 1) * offsets(count).frac()
        loss = nn.functional.mse_loss(net(rays).squeeze(1), rays.mean(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"{step}: {loss.item():.4f} {offsets.cache_info().currsize}", flush=True)


if __name__ == "__main__":
    main()
