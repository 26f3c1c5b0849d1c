"""A recurrent cell with weight normalisation reads sequences."""
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Reader(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.into, self.width = nn.Linear(8, width), width
        self.back = weight_norm(nn.Linear(width, width))
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        h = torch.zeros(x.shape[0], self.width)
        with torch.nn.utils.parametrize.cached():
            for t in range(x.shape[1]):
                h = torch.tanh(self.into(x[:, t]) + self.back(h))
        return self.out(h)


def main():
    torch.manual_seed(0)
    net = Reader()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(100):
        x, y = torch.randn(8, 40, 8), torch.randint(0, 4, (8,))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
