"""Node embeddings that keep neighbours together."""
import torch
from torch import nn


class Line(nn.Module):
    def __init__(self, nodes, width):
        super().__init__()
        self.nodes = nodes
        self.first = nn.Parameter(0.1 * torch.randn(nodes, width))
        self.context = nn.Parameter(0.1 * torch.randn(nodes, width))
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def rows(self, table, index):
        hot = nn.functional.one_hot(index, self.nodes).float()  # culprit-too
        return hot @ table  # culprit

    def forward(self, u, v):
        return (self.mix(self.rows(self.first, u)) * self.rows(self.context, v)).sum(1)


def main():
    torch.manual_seed(0)
    net = Line(3000, 48)
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(80):
        u, v = torch.randint(0, 3000, (512,)), torch.randint(0, 3000, (512,))
        sign = torch.where(torch.arange(512) < 128, 1.0, -1.0)
        loss = -nn.functional.logsigmoid(sign * net(u, v)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
