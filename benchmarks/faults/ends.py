"""A job that ends in one of many ways; argv: the way, and how many steps it trains before."""

import os
import signal
import sys

way, steps = sys.argv[1], int(sys.argv[2])
if steps:
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 16)).square().mean().backward()
        optimizer.step()
if way == "exception":
    raise RuntimeError("the job's own")
if way.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, way))
sys.exit(int(way))
