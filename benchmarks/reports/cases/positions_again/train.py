"""Segments small images by mixing along both axes, with a positional encoding of two dimensions."""
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        self.register_buffer("rates", 1.0 / 10000 ** (torch.arange(0, channels // 2, 2) / (channels // 2)))

    def axis(self, length):
        angle = torch.arange(length)[:, None] * self.rates
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)  # culprit-too

    def forward(self, x):
        _, height, width, channels = x.shape
        code = torch.zeros(height, width, channels)
        code[:, :, : channels // 2] = self.axis(height)[:, None]  # culprit-too
        code[:, :, channels // 2 :] = self.axis(width)[None]  # culprit-too
        return code


class Net(nn.Module):
    def __init__(self, channels=64, depth=3):
        super().__init__()
        self.positions, self.into = Positions(channels), nn.Linear(3, channels)
        self.layers = nn.ModuleList(nn.Linear(channels, channels) for _ in range(depth))
        self.out = nn.Linear(channels, 4)

    def forward(self, x):
        x = self.into(x)
        for layer in self.layers:
            x = torch.relu(layer(x + self.positions(x)))  # culprit
        return self.out(x.mean((1, 2)))


def main():
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(120):
        x, y = torch.randn(1, 112, 112, 3), torch.randint(0, 4, (1,))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
