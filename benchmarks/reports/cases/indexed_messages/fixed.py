"""Node classification with a message-passing network on a random graph."""
import torch
from torch import nn


class Message(nn.Module):
    def __init__(self, width, hidden, select=False):
        super().__init__()
        self.own, self.other = nn.Linear(width, hidden), nn.Linear(width, hidden, bias=False)
        self.select = select

    def forward(self, x, edges):
        source, target = edges
        h = self.other(x)
        if self.select:
            sent = h.index_select(0, source)
        else:
            sent = h[source]
        total = torch.zeros_like(h).index_add(0, target, sent)
        degree = torch.bincount(target, minlength=len(x)).clamp(min=1)
        return self.own(x) + total / degree[:, None]


class Gnn(nn.Module):
    def __init__(self, width, hidden, classes, select):
        super().__init__()
        self.a, self.b = Message(width, hidden, select), Message(hidden, hidden, select)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x, edges):
        x = torch.relu(self.a(x, edges))
        x = torch.relu(self.b(x, edges))
        return self.out(x)


def graph(nodes, edges, seed=0):
    g = torch.Generator().manual_seed(seed)
    hub = (torch.rand(edges, generator=g) ** 3 * nodes).long()
    return torch.stack([hub, torch.randint(0, nodes, (edges,), generator=g)])


def main():
    torch.manual_seed(0)
    edges = graph(3000, 40_000)
    x, y = torch.randn(3000, 64), torch.randint(0, 7, (3000,))
    train = torch.rand(3000) < 0.6
    net = Gnn(64, 64, 7, True)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(60):
        net.train()
        loss = nn.functional.cross_entropy(net(x, edges)[train], y[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
