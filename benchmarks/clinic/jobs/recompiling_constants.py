"""A compiled model reads a Python number that changes every few steps; healthy: it never changes."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
torch._dynamo.config.recompile_limit = 1024


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU())
        self.output = nn.Linear(256, 10)
        self.level = 0

    def forward(self, x):
        return self.output(self.layers(x)) / (1 + self.level / 1000)


model = Annealed()
compiled = torch.compile(model, backend="aot_eager")  # fault
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(8, 256, 256), torch.randint(10, (8, 256))
for step in range(steps):
    if amount:
        model.level = step // max(24 // amount, 1)
    loss = nn.functional.cross_entropy(compiled(data[step % 8]), labels[step % 8])  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lap()
