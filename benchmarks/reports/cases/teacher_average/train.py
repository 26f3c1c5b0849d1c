"""Self-distillation: a teacher that is the running average of the student."""
import copy

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.scale * self.b(torch.relu(self.a(self.norm(x))))


class Average:
    def __init__(self, net, rate):
        self.net, self.rate = copy.deepcopy(net).requires_grad_(False), rate

    @torch.no_grad()
    def update(self, net):
        state = net.state_dict()
        for name, value in self.net.state_dict().items():  # culprit-too
            value *= self.rate  # culprit
            value += (1 - self.rate) * state[name].detach()  # culprit-too


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 32), *[Block(32) for _ in range(60)], nn.Linear(32, 16))
    teacher = Average(net, 0.99)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    for step in range(150):
        x = torch.randn(16, 24)
        with torch.no_grad():
            goal = teacher.net(x).softmax(1)
        loss = nn.functional.cross_entropy(net(x + 0.1 * torch.randn_like(x)), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        teacher.update(net)  # culprit-too
        if step % 30 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
