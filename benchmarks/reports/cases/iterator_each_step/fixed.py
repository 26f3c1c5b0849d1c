"""Contrastive pre-training: one labelled and one unlabelled batch a step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Events(Dataset):
    """Vectors of events, generated from their number."""

    def __init__(self, size, width=64):
        self.size, self.width = size, width
        self.table = torch.randn(4096, width)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return self.table[i % 4096] + 0.01 * (i % 7), i % 10


class Net(nn.Module):
    def __init__(self, width=64, hidden=512):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                  nn.Linear(hidden, hidden), nn.ReLU())
        self.head, self.proj = nn.Linear(hidden, 10), nn.Linear(hidden, 64)

    def forward(self, x):
        h = self.body(x)
        return self.head(h), self.proj(h)


def forever(loader):
    while True:
        yield from loader


class Trainer:
    def __init__(self, steps):
        self.steps = steps
        self.net = Net()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=3e-4)
        self.labelled = DataLoader(Events(50_000), batch_size=128, shuffle=True)
        self.unlabelled = DataLoader(Events(600_000), batch_size=128, shuffle=True)
        self.stream = forever(self.unlabelled)

    def second_view(self):
        if self.stream is not None:
            return next(self.stream)[0]
        extra, _ = next(iter(self.unlabelled))
        return extra

    def step(self, x, y):
        logits, _ = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        u = self.second_view()
        _, a = self.net(u + 0.1 * torch.randn_like(u))
        _, b = self.net(u + 0.1 * torch.randn_like(u))
        sim = nn.functional.normalize(a, dim=1) @ nn.functional.normalize(b, dim=1).T
        loss = loss + nn.functional.cross_entropy(sim / 0.2, torch.arange(len(u)))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss

    def fit(self):
        done = 0
        while done < self.steps:
            for x, y in self.labelled:
                loss = self.step(x, y)
                done += 1
                if done % 40 == 0:
                    print(f"step {done}: {loss.item():.3f}", flush=True)
                if done == self.steps:
                    break


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(90).fit()
