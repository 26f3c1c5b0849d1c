"""Two gloo ranks with one planted fault: --fault input, host, no_sync, uneven, unused; without it they are healthy."""

import argparse
import contextlib
import time

import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FEATURES = 256


class Samples(Dataset):
    def __init__(self, count, slow):
        self.values = torch.randn(count, FEATURES)
        self.slow = slow

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        value = self.values[index]
        if self.slow:
            text = ",".join(map(repr, value.tolist()))  # fault: input
            value = torch.tensor([float(word) for word in text.split(",")])  # fault: input
        return value


def audit(model):
    return sum(len(repr(value)) for value in model.state_dict()["module.0.weight"][:192].tolist())  # fault: host


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    fault = arguments.fault
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    late = rank == 1
    batch = 192 if fault == "uneven" and late else 48
    loader = DataLoader(Samples(batch * 8, fault == "input" and late), batch_size=batch)
    layers = [torch.nn.Linear(FEATURES, 768), torch.nn.ReLU(), torch.nn.Linear(768, 768), torch.nn.Linear(768, 8)]
    network = torch.nn.Sequential(*layers)
    model = DistributedDataParallel(network, find_unused_parameters=fault == "unused")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    accumulate = 4 if fault in ("no_sync", "with_no_sync") else 1
    micro, step = 0, 0
    while step < arguments.steps:
        for values in loader:
            micro += 1
            last = micro % accumulate == 0
            with model.no_sync() if fault == "with_no_sync" and not last else contextlib.nullcontext():
                model(values).square().mean().backward()
            if not last:
                continue
            if fault == "host" and late:
                audit(model)  # fault: host
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == arguments.steps:
                break
    distributed.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
