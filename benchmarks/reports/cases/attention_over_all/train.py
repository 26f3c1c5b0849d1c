"""Subjects of papers from the papers that they cite: a graph network with attention."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(4)
torch.set_num_threads(1)
PAPERS, WORDS, SUBJECTS, CITED, EPOCHS = 1000, 300, 6, 4, 120


def library():
    """Words of each paper, its subject, and the matrix of citations (symmetric, with the diagonal)."""
    subjects = torch.randint(SUBJECTS, (PAPERS,))
    tone = torch.rand(SUBJECTS, WORDS)
    words = (torch.rand(PAPERS, WORDS) < 0.1 * tone[subjects]).float()
    likely = 1 + 20.0 * (subjects[:, None] == subjects)
    cited = torch.multinomial(likely, CITED)
    adjacency = torch.zeros(PAPERS, PAPERS).scatter_(1, cited, 1)
    return words, subjects, ((adjacency + adjacency.T + torch.eye(PAPERS)) > 0).float()


class Head(nn.Module):
    """One head of attention of each paper over the papers that it is connected to."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.project = nn.Linear(inputs, outputs, bias=False)
        self.asks, self.answers = nn.Linear(outputs, 1), nn.Linear(outputs, 1)

    def forward(self, papers, adjacency):
        values = self.project(papers)
        scores = F.leaky_relu(self.asks(values) + self.answers(values).T, 0.2)  # culprit
        scores = torch.where(adjacency > 0, scores, torch.full_like(scores, -9e15))  # culprit
        attention = scores.softmax(1)  # culprit
        return attention @ values  # culprit


class Reader(nn.Module):
    def __init__(self, heads=4, width=8):
        super().__init__()
        self.heads = nn.ModuleList(Head(WORDS, width) for _ in range(heads))
        self.out = Head(heads * width, SUBJECTS)

    def forward(self, words, adjacency):
        hidden = torch.cat([F.elu(head(words, adjacency)) for head in self.heads], 1)  # culprit-too
        return self.out(hidden, adjacency)  # culprit-too


words, subjects, adjacency = library()
known = torch.rand(PAPERS) < 0.3
reader = Reader()
optimizer = torch.optim.Adam(reader.parameters(), 5e-3, weight_decay=5e-4)
start = time.perf_counter()
for epoch in range(1, EPOCHS + 1):
    scores = reader(words, adjacency)  # culprit-too
    loss = F.cross_entropy(scores[known], subjects[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 30 == 0:
        right = (scores[~known].argmax(1) == subjects[~known]).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.4f}, right {right:.3f}", flush=True)
print(f"{EPOCHS} steps, {1e3 * (time.perf_counter() - start) / EPOCHS:.2f} ms/step")
