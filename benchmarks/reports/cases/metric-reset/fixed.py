"""Click prediction with a running AUROC in the progress line."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class AUROC:
    """Area under the ROC curve of all scores seen."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores.detach())
        self.labels.append(labels)

    def compute(self):
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        rank = torch.empty_like(scores)
        rank[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
        good = labels.sum()
        return (rank[labels == 1].sum() - good * (good + 1) / 2) / (good * (len(labels) - good)).clamp(min=1)


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(8))
        self.tower = nn.Sequential(
            nn.Linear(8 * 16 + 13, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, numbers, ids):
        parts = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.tower(torch.cat([numbers, *parts], 1)).squeeze(1)


N, BATCH = 16_384, 512
numbers, ids = torch.randn(N, 13), torch.randint(0, 1000, (N, 8))
clicks = ((numbers[:, 0] + 0.5 * torch.randn(N)) > 0.7).float()
train = DataLoader(TensorDataset(numbers, ids, clicks), BATCH // 4, shuffle=True, drop_last=True)
held_out = (torch.randn(2048, 13), torch.randint(0, 1000, (2048, 8)))


class Loop:
    def __init__(self):
        self.model, self.auroc = Clicks(), AUROC()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.02)
        self.done = 0

    def training_step(self, batch):
        numbers, ids, clicks = batch
        logits = self.model(numbers, ids)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.auroc.update(logits, clicks)
        return loss, self.auroc.compute()

    def epoch(self, number):
        self.model.train()
        for batch in train:
            loss, area = self.training_step(batch)
            self.done += 1
        self.model.eval()
        with torch.no_grad():
            mean = torch.sigmoid(self.model(*held_out)).mean()
        self.auroc.reset()
        print(
            f"epoch {number}: loss {loss.item():.4f} auroc {area.item():.3f} mean click {mean.item():.3f}", flush=True
        )


loop, start = Loop(), time.perf_counter()
for number in range(5):
    loop.epoch(number)
print(f"{loop.done} steps, {1e3 * (time.perf_counter() - start) / loop.done:.2f} ms/step")
