"""A confusion matrix is counted prediction by prediction in each step; healthy: on tensors. Loop with accumulation."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data, labels = torch.randn(16, 64, 512), torch.randint(10, (16, 64))
confusion = torch.zeros(10, 10, dtype=torch.long)


def update_metrics(predicted, wanted):
    for _ in range(amount):
        for guess, truth in zip(predicted, wanted, strict=True):
            confusion[truth, guess] += 1  # fault


for step in range(steps):
    for micro in range(2):
        scores = model(data[(step + micro) % 16])
        (nn.functional.cross_entropy(scores, labels[(step + micro) % 16]) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    update_metrics(scores.argmax(1), labels[(step + 1) % 16])  # fault
    lap()
