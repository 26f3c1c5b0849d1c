"""Two gloo ranks that train until a file appears; every 60th step of one of them is slow, and the other waits."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

MOST = 20_000


def write_log():
    time.sleep(0.4)


def main():
    """One rank."""
    distributed.init_process_group("gloo")
    late = distributed.get_rank() == 1
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(8, 64)
    for number in range(1, MOST):
        if number % 60 == 0 and late:
            write_log()
        time.sleep(0.005)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if number % 20 == 0:
            over = torch.tensor([float(Path(sys.argv[1]).exists())])
            distributed.all_reduce(over, op=distributed.ReduceOp.MAX)
            if over.item():
                break
    distributed.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
