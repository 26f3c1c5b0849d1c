"""Next-item recommendation from short shopping sessions: mean of the items seen, BPR loss, large batches."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
torch.set_num_threads(1)
ITEMS, WIDTH, SESSIONS, LONGEST, BATCH, STEPS = 4000, 24, 60_000, 12, 1536, 800


def make_sessions(generator):
    """Sessions wander about one of many groups of items; zero is padding."""
    group = torch.randint(1, ITEMS - 60, (SESSIONS, 1), generator=generator)
    items = group + torch.randint(60, (SESSIONS, LONGEST + 1), generator=generator)
    lengths = torch.randint(1, LONGEST + 1, (SESSIONS,), generator=generator)
    target = items[:, -1].clone()
    items = items[:, :LONGEST] * (torch.arange(LONGEST) < lengths[:, None])
    return items, lengths, target


class SessionBatch:
    """A batch of padded sessions that knows how long its longest is, and how many clicks it holds."""

    def __init__(self, columns):
        self.columns = columns
        lengths = columns["lengths"]
        self.longest = max(lengths)  # culprit
        self.clicks = sum(lengths)  # culprit

    def __getitem__(self, key):
        return self.columns[key]

    def __len__(self):
        return len(self.columns["lengths"])

    def trimmed(self):
        return self["items"][:, : int(self.longest)]


class SessionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=0)
        self.body = nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH))

    def forward(self, batch):
        mean = self.items(batch.trimmed()).sum(1) / batch["lengths"][:, None]
        return self.body(mean)

    def loss(self, batch, negatives):
        session = self(batch)
        better = (session * self.items(batch["target"])).sum(1) - (session * self.items(negatives)).sum(1)
        return -F.logsigmoid(better).mean()


def batches(data, generator):
    items, lengths, target = data
    while True:
        for rows in torch.randperm(SESSIONS, generator=generator).split(BATCH):
            if len(rows) == BATCH:
                columns = {"items": items[rows], "lengths": lengths[rows], "target": target[rows]}
                yield SessionBatch(columns)  # culprit-too


generator = torch.Generator().manual_seed(0)
loader = batches(make_sessions(generator), generator)
model = SessionModel()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
start, clicks = time.perf_counter(), 0
for step in range(1, STEPS + 1):
    batch = next(loader)
    loss = model.loss(batch, torch.randint(1, ITEMS, (len(batch),), generator=generator))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clicks += int(batch.clicks)
    if step % 200 == 0:
        print(f"step {step}: loss {loss.item():.4f}, {clicks} clicks seen", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
