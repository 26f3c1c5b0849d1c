"""Lesson 6, communication: gradients are accumulated over eight micro-batches, and exchanged after each of them.

steptime run -- torchrun --standalone --nproc-per-node=2 lesson_6_communication.py
steptime judge --args "--mended" -- torchrun --standalone --nproc-per-node=2 lesson_6_communication.py
"""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MENDED = "--mended" in sys.argv
MICRO_BATCHES = 8


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(60):
        for number in range(MICRO_BATCHES):
            last = number == MICRO_BATCHES - 1
            with contextlib.nullcontext() if last or not MENDED else model.no_sync():
                x = torch.randn(16, 512)
                loss = nn.functional.mse_loss(model(x), x) / MICRO_BATCHES
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
