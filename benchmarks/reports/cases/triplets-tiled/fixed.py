"""Sentence embeddings: averaged words through a small network, semi-hard triplets of the batch are the loss."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, TOPICS, LENGTH, WIDTH, BATCH, MARGIN = 4000, 40, 10, 64, 144, 0.5


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mixing = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.out = nn.Linear(WIDTH, 64)

    def forward(self, words):
        return F.normalize(self.out(self.mixing(self.words(words)).mean(1)), dim=1)


class SemiHardTripletLoss(nn.Module):
    """For each pair of one topic: the nearest stranger that is farther away than the partner, or the farthest."""

    def distances(self, embeddings):
        return (2 - 2 * embeddings @ embeddings.T).clamp(min=1e-9).sqrt()

    def negatives(self, distance, strangers):
        with torch.no_grad():
            ordered, order = distance.masked_fill(~strangers, 1e4).sort(1)
            place = torch.searchsorted(ordered, distance, right=True).clamp(max=len(distance) - 1)
            found = (ordered.gather(1, place) > distance) & (ordered.gather(1, place) < 1e4)
        nearest = distance.gather(1, order.gather(1, place))
        farthest = distance.masked_fill(~strangers, -1e4).amax(1, keepdim=True)
        return torch.where(found, nearest, farthest)

    def forward(self, embeddings, topics):
        same = topics[:, None] == topics
        distance = self.distances(embeddings)
        positives = same & ~torch.eye(len(topics), dtype=torch.bool)
        excess = distance - self.negatives(distance, ~same) + MARGIN
        return excess[positives].clamp(min=0).mean()


def batch():
    topics = torch.randint(TOPICS, (BATCH,))
    about = topics[:, None] * 100 + torch.randint(100, (BATCH, LENGTH))
    return torch.where(torch.rand(BATCH, LENGTH) < 0.3, about, torch.randint(WORDS, (BATCH, LENGTH))), topics


model, criterion = Encoder(), SemiHardTripletLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
start, STEPS = time.perf_counter(), 130
for step in range(1, STEPS + 1):
    words, topics = batch()
    loss = criterion(model(words), topics)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
