"""DistributedDataParallel over gloo, started by torchrun; 40 steps in every rank."""

import time

import torch
import torch.distributed as dist
from finger import Finger
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    """One rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(14)
    inputs = torch.randn(320, 16)
    dataset = TensorDataset(inputs, inputs[:, :4].argmax(1))
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, seed=1))
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    finger = Finger()
    for _ in range(2):
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            finger.loss(loss)
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == dist.get_rank():
            finger.show(*model.parameters(), label=f"rank{rank}")
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
