"""A job of several ranks in which one is late: its shard of the data was never converted, and is parsed as it is read.

    steptime run -- torchrun --standalone --nproc-per-node=2 examples/ddp_late_rank.py

Needs torch and nothing else (gloo, on the CPU). Every rank has the same model and batches of the same size; the other
ranks wait in the gradients' all-reduce, which looks like a slow network. `--healthy` converts the shard first.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES = 256, 8


class Shard(Dataset):
    """The samples of one rank. Those of an old shard are lines of text."""

    def __init__(self, rank: int, count: int, *, text: bool) -> None:
        generator = torch.Generator().manual_seed(rank)
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        values = torch.randn(count, FEATURES, generator=generator) + self.labels[:, None]
        self.lines = [",".join(map(repr, row.tolist())) for row in values] if text else []
        self.values = values

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.lines:
            return torch.tensor([float(word) for word in self.lines[index].split(",")]), self.labels[index]
        return self.values[index], self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--healthy", action="store_true")
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    old = rank == distributed.get_world_size() - 1 and not arguments.healthy
    loader = DataLoader(Shard(rank, 128 * 16, text=old), batch_size=128, shuffle=True)
    layers = (nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    step = 0
    while step < arguments.steps:
        for values, labels in loader:
            loss = loss_function(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 50 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            if step == arguments.steps:
                break
    distributed.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
