"""A concept bottleneck: birds are named from attributes, and the attributes are learned from pictures of features."""

import time

import torch
from torch import nn
from torch.nn import functional as F


class ConceptBottleneck(nn.Module):
    def __init__(self, features, concepts, classes, width=256):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, width), nn.BatchNorm1d(width), nn.LeakyReLU(), nn.Linear(width, width),
            nn.BatchNorm1d(width), nn.LeakyReLU(),
        )
        self.concepts = nn.Linear(width, concepts)
        self.head = nn.Linear(concepts, classes)

    def forward(self, x):
        chances = torch.sigmoid(self.concepts(self.encoder(x)))
        return chances, self.head(chances)


class BottleneckLoss(nn.Module):
    """Cross entropy of the class and, weighted, of all concepts."""

    def __init__(self, alpha=1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, chances, concepts, logits, targets):
        target_loss = F.cross_entropy(logits, targets)
        concepts_loss = F.binary_cross_entropy(chances, concepts)
        return target_loss, self.alpha * concepts_loss, target_loss + self.alpha * concepts_loss


class Birds:
    def __init__(self, classes=30, concepts=112, features=384, seed=0):
        self.random = torch.Generator().manual_seed(seed)
        self.attributes = (torch.rand(classes, concepts, generator=self.random) < 0.3).float()
        self.looks = torch.randn(concepts, features, generator=self.random) / concepts**0.5

    def sample(self, count):
        targets = torch.randint(len(self.attributes), (count,), generator=self.random)
        concepts = self.attributes[targets]
        features = concepts @ self.looks
        return features + 0.3 * torch.randn(features.shape, generator=self.random), concepts, targets


def train_one_step(batch, model, loss_function, optimizer):
    features, concepts, targets = batch
    chances, logits = model(features)
    target_loss, concepts_loss, total = loss_function(chances, concepts, logits, targets)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    return {
        "target": target_loss.detach(),
        "concepts": concepts_loss.detach(),
        "accuracy": (logits.argmax(1) == targets).float().mean(),
    }


def main(steps=300, batch=256):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    birds = Birds()
    model = ConceptBottleneck(384, 112, 30)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_function = BottleneckLoss()
    start = time.perf_counter()
    for step in range(1, steps + 1):
        logged = train_one_step(birds.sample(batch), model, loss_function, optimizer)
        if step % 75 == 0:
            print(f"step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in logged.items()), flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


main()
