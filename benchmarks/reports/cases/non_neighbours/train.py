"""Words of a hierarchy as points in a ball: linked words near each other, others far apart."""

import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, WRONG, WIDTH, BATCH, STEPS = 2400, 10, 12, 96, 420


def hierarchy(rng):
    """Each word with all words above it."""
    parent = [0] + [rng.randrange(i // 8, i) for i in range(1, WORDS)]
    links = []
    for word in range(1, WORDS):
        above = parent[word]
        while above:
            links.append((word, above))
            above = parent[above]
    return links


class Links(Dataset):
    """A link and words that the first word is not linked with."""

    def __init__(self, links):
        self.links, self.linked, self.rng = links, [{word} for word in range(WORDS)], random.Random(1)
        for one, other in links:
            self.linked[one].add(other)
            self.linked[other].add(one)

    def __len__(self):
        return len(self.links)

    def strangers(self, word):
        candidates = [other for other in range(WORDS) if other not in self.linked[word]]  # culprit
        return self.rng.sample(candidates, WRONG)  # culprit-too

    def __getitem__(self, i):
        word, above = self.links[i]
        return torch.tensor([word]), torch.tensor([above, *self.strangers(word)])  # culprit-too


class Ball(nn.Module):
    """Distances in the Poincare ball."""

    def __init__(self):
        super().__init__()
        self.points = nn.Embedding(WORDS, WIDTH)
        nn.init.uniform_(self.points.weight, -1e-2, 1e-2)

    def inside(self, index):
        point = self.points(index)
        length = point.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return point / length * torch.tanh(length) * 0.999

    def forward(self, one, others):
        a, b = self.inside(one), self.inside(others)
        gap = (a - b).square().sum(-1) / ((1 - a.square().sum(-1)) * (1 - b.square().sum(-1)))
        return torch.acosh(1 + 2 * gap.clamp_min(1e-7))


def batches(dataset):
    while True:
        yield from DataLoader(dataset, BATCH, shuffle=True, drop_last=True)


loader = batches(Links(hierarchy(random.Random(0))))
model = Ball()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
start, mean = time.perf_counter(), 0.0
for step in range(1, STEPS + 1):
    one, others = next(loader)  # culprit-too
    distance = model(one, others)
    loss = (distance[:, 0] + torch.logsumexp(-distance, 1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean += loss.item() / 70
    if step % 70 == 0:
        print(f"step {step}: mean loss {mean:.3f}", flush=True)
        mean = 0.0
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
