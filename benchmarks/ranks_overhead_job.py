"""One rank of the job of `ranks_overhead.py`: as `overhead_job.py`, with gradients exchanged over gloo.

argv: folder for the results, pairs of blocks. Both ranks throw their switches at the same steps and in the same drawn
order, so that neither waits for a rank that is watched otherwise. Wall time, because that is what such a job's user
waits for, and CPU time of the training thread, which a busy machine disturbs less.
"""

import gc
import itertools
import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as distributed
from overhead_job import PASSED, Monitor, middle
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH, BATCH = 1024, 96
COUNT = 12
"""Steps of a block that are timed."""
SETTLED_STEPS = 150


def batches():
    """Batches of one loader, for ever."""
    dataset = TensorDataset(torch.randn(BATCH * 4096 // BATCH, 256))
    while True:
        yield from DataLoader(dataset, batch_size=BATCH, drop_last=True)


def make_step():
    """One training step of four modules, as a function."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(256, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 8))
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    source = batches()

    def step():
        (batch,) = next(source)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def durations(step, count):
    """(wall, CPU) ns per step, each the mean of the middle half of the block."""
    stamps = [(time.perf_counter_ns(), time.thread_time_ns())]
    for _ in range(count):
        step()
        stamps.append((time.perf_counter_ns(), time.thread_time_ns()))
    pairs = list(itertools.pairwise(stamps))
    return [middle([after[which] - before[which] for before, after in pairs]) for which in (0, 1)]


def pair(step, watch, switches, order):
    """Both halves, each with one switch thrown."""
    halves = [None, None]
    for place in order.sample((0, 1), 2):
        watch.off()
        watch.on()
        switches[place]()
        for _ in range(PASSED):
            step()
        halves[place] = durations(step, COUNT)
        if switches[place] == watch.off:
            watch.on()
    return halves


def main():
    """Settles, and measures pairs."""
    folder, pairs = Path(sys.argv[1]), int(sys.argv[2])
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    step, order = make_step(), random.Random(0)
    for _ in range(SETTLED_STEPS):
        step()
    watch, real, idle = Monitor(), [], []
    gc.collect()
    gc.disable()
    for _ in range(pairs):
        real.append(pair(step, watch, (watch.on, watch.off), order))
        idle.append(pair(step, watch, (watch.off, watch.off), order))
    results = {"on_off": real, "off_off": idle}
    (folder / f"rank-{distributed.get_rank()}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)


if __name__ == "__main__":
    main()
