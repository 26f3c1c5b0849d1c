"""Every step is logged at length to a file that is flushed; healthy: every fiftieth. No loader at all."""

import logging
import tempfile

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
logging.basicConfig(filename=tempfile.mkstemp(suffix=".log")[1], level=logging.INFO)
log = logging.getLogger("train")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, labels = torch.randn(16, 64, 512), torch.randint(10, (16, 64))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for _ in range(10 * amount):
        for name, parameter in model.named_parameters():
            log.info("step %d loss %.4f %s shape %s", step, loss, name, tuple(parameter.shape))  # fault
    if step % 50 == 0:
        log.info("step %d loss %.4f", step, loss)
    lap()
