"""Two ranks of one job; the second one alone makes what is not finite: torchrun --nproc-per-node 2 distributed.py."""

import time

import torch
import torch.distributed as dist
from planted import LATER, STEPS, Network
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        x = model(torch.randn(8, 8))
        if step == LATER and dist.get_rank() == 1:
            x = x * 0
        loss = x.square().sum(dim=1).sqrt().mean()  # distributed
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
