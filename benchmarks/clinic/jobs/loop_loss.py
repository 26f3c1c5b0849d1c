"""The loss is added up sample by sample; healthy: one call for the batch. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 64, 512), torch.randint(10, (16, 64))


def criterion(scores, wanted):
    if not amount:
        return nn.functional.cross_entropy(scores, wanted)
    total = 0.0
    for sample in range(min(8 * amount, len(scores))):
        chances = torch.softmax(scores[sample], 0)  # fault
        total = total - torch.log(chances[wanted[sample]])  # fault
    return total / len(scores)


for step in range(steps):
    loss = criterion(model(data[step % 16]), labels[step % 16])  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
