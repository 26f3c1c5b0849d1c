"""Click prediction: every day of a visitor's history is described by a tower, attention sums the days up."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
ITEMS, CLICKS, COUNTS, DAYS, WIDTH, BATCH, STEPS = 5000, 5, 12, 28, 24, 64, 420


class Tower(nn.Module):
    """One day: the items that were clicked, a few counts, and the products between them."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.counts = nn.Sequential(nn.Linear(COUNTS, 48), nn.ReLU(), nn.Linear(48, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(CLICKS * 3 + WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH))
        self.register_buffer("pairs", torch.tril_indices(CLICKS + 1, CLICKS + 1, -1))

    def forward(self, clicked, counts):
        counts = self.counts(counts)
        rows = torch.cat([counts[:, None], self.items(clicked)], 1)
        products = (rows @ rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return F.normalize(self.top(torch.cat([counts, products], 1)), dim=1)


class Visitor(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = Tower()
        self.attend = nn.Sequential(nn.Linear(DAYS, 32), nn.ReLU(), nn.Linear(32, DAYS))
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, clicked, counts):
        history = self.tower(clicked[:, :DAYS].flatten(0, 1), counts[:, :DAYS].flatten(0, 1))
        history = history.view(len(clicked), DAYS, WIDTH)
        today = self.tower(clicked[:, DAYS], counts[:, DAYS])
        weights = self.attend((history @ today[:, :, None])[:, :, 0])
        summed = (weights[:, :, None] * history).sum(1)
        return self.head(torch.cat([summed, today], 1))[:, 0]


def visits(count, generator):
    taste = torch.randint(ITEMS, (count, 1, 1), generator=generator)
    clicked = (taste + torch.randint(200, (count, DAYS + 1, CLICKS), generator=generator)) % ITEMS
    counts = torch.rand(count, DAYS + 1, COUNTS, generator=generator)
    bought = (clicked[:, -1, 0] < ITEMS // 2) & (counts[:, -1, 0] > 0.3)
    return clicked, counts, bought.float()


generator = torch.Generator().manual_seed(0)
clicked, counts, bought = visits(6000, generator)
model = Visitor()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    rows = torch.randint(len(bought), (BATCH,), generator=generator)
    loss = F.binary_cross_entropy_with_logits(model(clicked[rows], counts[rows]), bought[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 70 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
