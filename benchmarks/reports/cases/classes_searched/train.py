"""Embeddings of items by proxies of their classes; each batch holds a few classes with some items each."""

import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, EACH, PICKED, SHOTS, WIDTH, STEPS = 1500, 12, 10, 6, 96, 450


class Items(Dataset):
    """Noisy copies of one pattern a class; labels as a list, in any order."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.ys = rng.permutation(np.repeat(np.arange(CLASSES), EACH)).tolist()
        self.patterns = torch.randn(CLASSES, WIDTH)

    def __len__(self):
        return len(self.ys)

    def __getitem__(self, i):
        return self.patterns[self.ys[i]] + 0.5 * torch.randn(WIDTH), self.ys[i]


class BalancedSampler:
    """Batches of some classes with the same number of items each."""

    def __init__(self, ys):
        self.ys, self.rng = ys, np.random.default_rng(1)

    def __len__(self):
        return STEPS

    def __iter__(self):
        for _ in range(STEPS):
            batch = []
            for picked in self.rng.choice(CLASSES, PICKED, replace=False):  # culprit-too
                members = np.nonzero(np.array(self.ys) == picked)[0]  # culprit
                batch.extend(self.rng.permutation(members)[:SHOTS].tolist())
            yield batch


class ProxyLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(CLASSES, 64))

    def forward(self, embedded, labels):
        near = F.normalize(embedded) @ F.normalize(self.proxies).T
        wanted = F.one_hot(labels, CLASSES).bool()
        pull = torch.logsumexp(torch.where(wanted, -32 * (near - 0.1), -1e4), 0)[labels.unique()].mean()
        return pull + F.softplus(torch.logsumexp(torch.where(wanted, -1e4, 32 * (near + 0.1)), 0)).mean()


items = Items()
loader = DataLoader(items, batch_sampler=BalancedSampler(items.ys))
model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 64))
criterion = ProxyLoss()
optimizer = torch.optim.AdamW([*model.parameters(), *criterion.parameters()], lr=1e-3)
start = time.perf_counter()
for step, (features, labels) in enumerate(loader, 1):  # culprit-too
    loss = criterion(model(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 90 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
