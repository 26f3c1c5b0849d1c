"""Nothing is wrong with the job, but other programs use the CPUs; the job must not be blamed."""

import subprocess
import sys

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
burn = "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
neighbours = [subprocess.Popen([sys.executable, "-S", "-c", burn]) for _ in range(amount)]
try:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, labels = torch.randn(16, 128, 512), torch.randint(10, (16, 128))
    for step in range(steps):
        loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lap()
finally:
    for neighbour in neighbours:
        neighbour.kill()
