"""The job of `overhead.py`: run under steptime, it takes the watch off and on in turns and prints what steps cost.

argv: target step in ms, pairs of blocks, "loader" for batches from a DataLoader. Prints one line of JSON.
A longer step applies one layer more often: a wider layer would wait for memory, whose time differs by more than a watch
costs.
CPU time of the training thread, step by step, because the machine may be shared. Blocks are short, so that both halves
of a pair see the same machine; a half is the mean of its middle steps, so that a neighbour's interrupt moves nothing;
the order within a pair is drawn, so that drift cancels. Pairs with the watch off in both halves say how much the method
itself invents. Steps in which the watch does more than keep records (it looks around five times a second, writes its
journal, meets a new loader's iterator) are none of the middle ones: they are measured by themselves, while it is on.
"""

import gc
import itertools
import json
import random
import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

BLOCK_SECONDS = 0.02
BLOCK_STEPS = 10
"""At least so many steps a block."""
PASSED = 4
"""Steps after a switch that are passed over: patched classes drop the interpreter's caches, names are learnt anew."""
BUSY_SECONDS = 10
"""How long the steps are looked at in which the watch does more than keep records."""
RARE = 1 / 4
SETTLED_STEPS = 60
"""Discovery and the line timeline are over, and the allocator has what it needs."""
SETTLED_SECONDS = 1
"""The script of the probe has come to plain watching, where a long job spends its time."""


WIDTH = 128


def make_step(depth, use_loader):
    """(model, function of one training step) of a perceptron whose hidden layer is applied `depth` times."""
    torch.manual_seed(0)
    hidden = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()
    model = torch.nn.Sequential(
        torch.nn.Linear(32, WIDTH), torch.nn.ReLU(), *(hidden * depth), torch.nn.Linear(WIDTH, 8)
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

    return model, step


def batches_of(inputs, targets):
    """Batches of one loader, for ever."""
    dataset = TensorDataset(inputs.repeat(64, 1), targets.repeat(64))
    while True:
        yield from DataLoader(dataset, batch_size=4)


def duration(step, count):
    """CPU ns per step."""
    start = time.process_time_ns()
    for _ in range(count):
        step()
    return (time.process_time_ns() - start) / count


def durations(step, count):
    """CPU ns of each of `count` steps."""
    stamps = [time.thread_time_ns()]
    for _ in range(count):
        step()
        stamps.append(time.thread_time_ns())
    return [after - before for before, after in itertools.pairwise(stamps)]


def middle(values):
    """The mean of the middle half."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


def deep_enough(target, use_loader):
    """(how often the hidden layer is applied, the step) so that a step takes about `target` ns."""
    shallow, deep = (_usual(make_step(depth, use_loader)[1]) for depth in (1, 11))
    depth = max(1, round(1 + 10 * (target - shallow) / (deep - shallow)))
    return depth, make_step(depth, use_loader)[1]


def _usual(step):
    duration(step, 30)
    return min(duration(step, 10) for _ in range(10))


class Monitor:
    """The probe of this process, on and off; also its two descriptors in the loader, which otherwise always stay."""

    def __init__(self):
        self.session = next(found for found in gc.get_objects() if type(found).__name__ == "Session")
        self.loader = sys.modules["steptime.probe.loader"]

    def on(self):
        """Everything as steptime has it."""
        self.session.instrument()
        self.loader.distinguish(True)
        self.session.quiet.together = False

    def off(self):
        """torch as it was."""
        self.session.uninstrument()
        self.loader.distinguish(False)


def pair(step, watch, switches, count):
    """Middle steps with each of two switches thrown, in drawn order, from the same state."""
    halves = [0.0, 0.0]
    for place in random.sample((0, 1), 2):
        watch.off()
        watch.on()
        switches[place]()
        duration(step, PASSED)
        halves[place] = middle(durations(step, count))
        if switches[place] == watch.off:
            watch.on()
    return halves


def busy(step, watch, seconds):
    """(CPU ns of the middle steps in which the watch only keeps, of those in which it does more, share of the latter).

    It does more where it moves the time until which it is quiet, or where it has just forgotten or learnt a name. Where
    that is more than a quarter of the steps, they are among the middle ones of a pair already: nothing is to be added.
    """
    quiet, known = watch.session.quiet, watch.session._ranges._known
    kept, more, until = [], [], time.perf_counter() + seconds
    before = quiet.until, len(known)
    while time.perf_counter() < until:
        start = time.thread_time_ns()
        step()
        end = time.thread_time_ns()
        after = quiet.until, len(known)
        (kept if after == before else more).append(end - start)
        before = after
    share = len(more) / (len(kept) + len(more))
    return (middle(kept), statistics.median(more), share) if 0 < share <= RARE else (0.0, 0.0, share)


def main():
    """Calibrates, settles, and measures pairs."""
    target, pairs, use_loader = float(sys.argv[1]) * 1e6, int(sys.argv[2]), "loader" in sys.argv
    torch.set_num_threads(1)
    depth, step = deep_enough(target, use_loader)
    usual = duration(step, SETTLED_STEPS)
    duration(step, int(SETTLED_SECONDS * 1e9 / usual))
    watch, count = Monitor(), max(BLOCK_STEPS, int(BLOCK_SECONDS * 1e9 / usual))
    gc.collect()
    gc.disable()
    real, idle = [], []
    for _ in range(pairs):
        real.append(pair(step, watch, (watch.on, watch.off), count))
        idle.append(pair(step, watch, (watch.off, watch.off), count))
    kept, more, share = busy(step, watch, BUSY_SECONDS)
    found = {"depth": depth, "block_steps": count, "on_off": real, "off_off": idle, "steps": watch.session.steps}
    print(json.dumps({**found, "busy_ns": more - kept, "busy_share": share}))


if __name__ == "__main__":
    main()
