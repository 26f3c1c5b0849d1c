"""Whales told apart by their flukes: embeddings learned from triplets with the hardest negative."""

import time
from itertools import combinations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(6)
torch.set_num_threads(1)
WHALES, PER_BATCH, PICTURES, FEATURES, MARGIN, STEPS = 60, 10, 12, 512, 1.0, 300


def hardest(losses):
    worst = np.argmax(losses)
    return worst if losses[worst] > 0 else None


class TripletSelector:
    """For each pair of pictures of one whale the negative that violates the margin most."""

    def __init__(self, margin, choose):
        self.margin, self.choose = margin, choose

    def triplets(self, embeddings, labels):
        distances = torch.cdist(embeddings, embeddings).square()
        labels = labels.numpy()
        found = []
        for label in np.unique(labels):
            own = np.where(labels == label)[0]
            others = np.where(labels != label)[0]
            for anchor, positive in combinations(own, 2):  # culprit
                near = distances[anchor, positive]  # culprit
                losses = near - distances[anchor, torch.from_numpy(others)] + self.margin  # culprit
                negative = self.choose(losses.numpy())  # culprit
                if negative is not None:
                    found.append([anchor, positive, others[negative]])  # culprit-too
        return torch.from_numpy(np.array(found))


class Loss(nn.Module):
    def __init__(self, margin, selector):
        super().__init__()
        self.margin, self.selector = margin, selector

    def forward(self, embeddings, labels):
        anchor, positive, negative = self.selector.triplets(embeddings.detach(), labels).T  # culprit-too
        near = (embeddings[anchor] - embeddings[positive]).square().sum(1)
        far = (embeddings[anchor] - embeddings[negative]).square().sum(1)
        return F.relu(near - far + self.margin).mean()


class Flukes:
    def __init__(self):
        self.centres = torch.randn(WHALES, FEATURES)

    def batch(self):
        labels = torch.randperm(WHALES)[:PER_BATCH].repeat_interleave(PICTURES)
        return self.centres[labels] + 1.5 * torch.randn(len(labels), FEATURES), labels


flukes = Flukes()
net = nn.Sequential(
    nn.Linear(FEATURES, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 32)
)
criterion = Loss(MARGIN, TripletSelector(MARGIN, hardest))
optimizer = torch.optim.Adam(net.parameters(), 3e-4)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    pictures, labels = flukes.batch()
    loss = criterion(F.normalize(net(pictures)), labels)  # culprit-too
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 75 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
