"""The job of `overhead.py`: run under steptime, it takes the watch off and on in turns and prints what steps cost.

argv: target step in ms, pairs of blocks, "loader" for batches from a DataLoader. Prints one line of JSON.
CPU time of the process, because the machine may be shared; the order within a pair is drawn, so that drift cancels;
pairs with the watch off in both halves say how much the method itself invents.
"""

import gc
import json
import random
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import fetch

BLOCK_SECONDS = 0.06
SETTLED_STEPS = 60
"""Discovery and the line timeline are over, and the allocator has what it needs."""
SETTLED_SECONDS = 1
"""The script of the probe has come to plain watching, where a long job spends its time."""


def make_step(width, use_loader):
    """One training step of six modules, as a function."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 8),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs, targets = torch.randn(16, 32), torch.randint(0, 8, (16,))
    batches = batches_of(inputs, targets) if use_loader else None

    def step():
        batch, labels = next(batches) if batches is not None else (inputs, targets)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()

    return step


def batches_of(inputs, targets):
    """Batches of one loader, for ever."""
    dataset = TensorDataset(inputs.repeat(64, 1), targets.repeat(64))
    while True:
        yield from DataLoader(dataset, batch_size=4)


def duration(step, count):
    """CPU ns per step."""
    begin = time.process_time_ns()
    for _ in range(count):
        step()
    return (time.process_time_ns() - begin) / count


def wide_enough(target, use_loader):
    """The model whose step takes at least `target` ns."""
    for width in (32, 64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072):
        step = make_step(width, use_loader)
        duration(step, 10)
        if duration(step, 30) >= target:
            break
    return width, step


class Watch:
    """The probe of this process, on and off; also its two descriptors in the loader, which otherwise always stay."""

    def __init__(self):
        self.session = next(found for found in gc.get_objects() if type(found).__name__ == "Session")
        self.fetch = fetch._MapDatasetFetcher.__dict__["fetch"]
        self.collate = fetch._BaseDatasetFetcher.__dict__["collate_fn"]

    def on(self):
        """Everything as steptime has it."""
        self.session.watch_on()
        fetch._MapDatasetFetcher.fetch, fetch._BaseDatasetFetcher.collate_fn = self.fetch, self.collate

    def off(self):
        """torch as it was."""
        self.session.watch_off()
        fetch._MapDatasetFetcher.fetch = self.fetch._original
        del fetch._BaseDatasetFetcher.collate_fn


def main():
    """Calibrates, settles, and measures pairs."""
    target, pairs, use_loader = float(sys.argv[1]) * 1e6, int(sys.argv[2]), "loader" in sys.argv
    torch.set_num_threads(1)
    width, step = wide_enough(target, use_loader)
    usual = duration(step, SETTLED_STEPS)
    duration(step, int(SETTLED_SECONDS * 1e9 / usual))
    watch, count = Watch(), max(5, int(BLOCK_SECONDS * 1e9 / usual))
    real, idle = [], []
    gc.collect()
    gc.disable()
    for number in range(2 * pairs):
        switched = (watch.on, watch.off) if number % 2 == 0 else (watch.off, watch.off)
        order = random.sample((0, 1), 2)
        half = [0.0, 0.0]
        for place in order:
            watch.off()
            watch.on()
            switched[place]()
            duration(step, 3)
            half[place] = duration(step, count)
            if switched[place] == watch.off:
                watch.on()
        (real if number % 2 == 0 else idle).append(half)
    print(
        json.dumps(
            {"width": width, "block_steps": count, "on_off": real, "off_off": idle, "steps": watch.session.steps}
        )
    )


if __name__ == "__main__":
    main()
