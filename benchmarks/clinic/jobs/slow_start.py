"""Only the first steps are slow, while caches fill; what comes after must be judged, not they."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 128, 512), torch.randint(10, (16, 128))
tables = {}
for step in range(steps):
    if step < 8 and amount:
        tables[step] = sorted(str(number) for number in range(20000 * amount))
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
