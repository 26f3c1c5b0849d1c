"""An encoder for sets of measurements."""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        seen, _ = self.attend(x, x, x)  # culprit
        x = self.norm1(x + seen)
        return self.norm2(x + self.feed(x))


class Encoder(nn.Module):
    def __init__(self, width=64, heads=8, depth=2):
        super().__init__()
        self.into = nn.Linear(12, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.out = nn.Linear(width, 9)

    def forward(self, x):
        x = self.into(x)
        for layer in self.layers:
            x = layer(x)  # culprit-too
        return self.out(x.mean(1))


def main():
    torch.manual_seed(0)
    net = Encoder(32)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(60):
        x, y = torch.randn(4, 224, 12), torch.randint(0, 9, (4,))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
