"""Continual learning: tasks one after another, elastic weight consolidation holds what mattered before."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
PIXELS, WIDTH, BATCH, SAMPLES, TASKS, STEPS_A_TASK = 400, 256, 64, 384, 4, 100


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
        )
        self.old = []

    def forward(self, x):
        return self.layers(x)

    def estimate_fisher(self, batches):
        parameters = list(self.parameters())
        fisher = [torch.zeros_like(p) for p in parameters]
        for _ in range(SAMPLES // BATCH):
            for x, y in zip(*next(batches), strict=True):
                likelihood = F.log_softmax(self(x), 0)[y]
                gradients = torch.autograd.grad(likelihood, parameters)
                for total, g in zip(fisher, gradients, strict=True):
                    total += g**2 / SAMPLES
        return fisher

    def consolidate(self, fisher):
        self.old.append((fisher, [p.detach().clone() for p in self.parameters()]))

    def penalty(self):
        return sum(
            (f * (p - m) ** 2).sum()
            for fisher, means in self.old
            for f, m, p in zip(fisher, means, self.parameters(), strict=True)
        )


directions = torch.randn(10, PIXELS)


def batches_of(task):
    order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(task))
    while True:
        y = torch.randint(10, (BATCH,))
        yield (directions[y] + 2 * torch.randn(BATCH, PIXELS))[:, order], y


model, steps = Network(), 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
start = time.perf_counter()
for task in range(TASKS):
    batches = batches_of(task)
    for _ in range(STEPS_A_TASK):
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y) + 20.0 * model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    model.consolidate(model.estimate_fisher(batches))
    print(f"task {task}: loss {loss.item():.4f}", flush=True)
print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")
