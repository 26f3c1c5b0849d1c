"""Speaker verification: an LSTM embeds utterances, the generalized end-to-end loss pulls speakers apart."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
SPEAKERS, UTTERANCES, FRAMES, MELS, WIDTH = 8, 5, 40, 40, 64


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(MELS, WIDTH, num_layers=2, batch_first=True)
        self.out = nn.Linear(WIDTH, 64)

    def forward(self, mels):
        frames, _ = self.lstm(mels)
        return F.normalize(self.out(frames[:, -1]), dim=1)


class GE2ELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.tensor(-5.0))

    def centroids(self, embeddings):
        return embeddings.mean(1)

    def similarity(self, embeddings, centroids):
        n, m, _ = embeddings.shape
        others = (embeddings.sum(1, keepdim=True) - embeddings) / (m - 1)
        own = F.cosine_similarity(embeddings, others, dim=2)
        table = F.cosine_similarity(embeddings[:, :, None], centroids[None, None], dim=3)
        return torch.where(torch.eye(n, dtype=torch.bool)[:, None], own[:, :, None], table)

    def forward(self, embeddings):
        table = self.weight * self.similarity(embeddings, self.centroids(embeddings)) + self.bias
        wanted = torch.arange(len(embeddings)).repeat_interleave(embeddings.shape[1])
        return F.cross_entropy(table.flatten(0, 1), wanted)


voices = torch.randn(40, 1, 1, MELS)
model, criterion = Embedder(), GE2ELoss()
optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=1e-3)
start, STEPS = time.perf_counter(), 160
for step in range(1, STEPS + 1):
    who = torch.randperm(40)[:SPEAKERS]
    mels = voices[who] + torch.randn(SPEAKERS, UTTERANCES, FRAMES, MELS)
    embeddings = model(mels.flatten(0, 1)).view(SPEAKERS, UTTERANCES, -1)
    loss = criterion(embeddings)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 3.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
