"""The same small training for every operation, which is done behind each of its steps: what users do with a model in
the middle of a training.

A family of operations is a script: it names functions with `@operation()` and ends with `main()`. What an operation
returns is told on standard output, as one digest for each part, step by step: equal lines are equal bits.
"""

import functools
import gc
import hashlib
import io
import os
import re
import sys
import time
import types

import torch
import torch.utils.data

STEPS, STEP_SECONDS = 61, 0.025
"""Steps of this length reach every state of a watch, the one with the watch off in turns among them."""
EACH = range(STEPS)
DEAR = (0, 1, 2, 3, 6, 11, 12, 15, 20, 30, 32, 33, 34, 35, 50, 60)
FEW = (0, 1, 2, 6, 12, 15, 30, 34, 50)
"""Steps for what takes a tenth of a second, and for what takes a good part of one."""
ATTACHED_FROM = 10
"""Behind this step a job waits until somebody has attached to it, where it is told to."""
OPERATIONS = []
RANK = f" of rank {os.environ['RANK']}" if "RANK" in os.environ else ""
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


class Net(torch.nn.Module):
    """What is trained, unless an operation wants something else."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.last = torch.nn.Linear(32, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rows):
        return self.last(torch.relu(self.norm(self.first(rows))))


class Convolutions(torch.nn.Module):
    """A small network of pictures, whose layers can be fused."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(1, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(4)
        self.relu = torch.nn.ReLU()
        self.last = torch.nn.Linear(64, 4)

    def forward(self, rows):
        return self.last(self.relu(self.norm(self.convolution(rows.unsqueeze(1)))).flatten(1))


def operation(model=Net, steps=EACH, trains=True):
    """Names an operation `(model, optimizer, step, batch) -> parts`. model: makes what is trained. trains: whether the
    loop does the training step, else the operation does."""

    def add(function):
        OPERATIONS.append((function.__name__.replace("_", " "), function, model, steps, trains))
        return function

    return add


def halved(module):
    """The module with weights of half the size: who computes with the original's weights gives another answer."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)
    return module


def saved(thing, **options):
    """The bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


def loaded(data, **options):
    return torch.load(io.BytesIO(data), **{"weights_only": False, **options})


def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def train(model, optimizer, batch):
    """One training step."""
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


# -- what is told ----------------------------------------------------------------------------------------------------


def digest(thing):
    """Of tensors bit for bit, of containers piece by piece, of all else by its text."""
    whole = hashlib.sha256()
    _feed(whole, thing)
    return whole.hexdigest()[:16]


def _feed(whole, thing):
    if isinstance(thing, torch.Tensor):
        plain = thing.detach()
        plain = plain.full_tensor() if hasattr(plain, "full_tensor") else plain
        plain = plain.dequantize() if plain.is_quantized else plain
        whole.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        whole.update(bytes(plain.contiguous().flatten().view(torch.uint8).tolist()))
    elif isinstance(thing, bytes):
        whole.update(thing)
    elif isinstance(thing, dict):
        for name, value in thing.items():
            whole.update(repr(name).encode())
            _feed(whole, value)
    elif isinstance(thing, (list, tuple)):
        whole.update(str(len(thing)).encode())
        for value in thing:
            _feed(whole, value)
    else:
        whole.update(ADDRESS.sub("0x", repr(thing)).encode())


def notify(name, step, part, thing):
    """One line of what must be equal."""
    _line(f"= {name}|{step}|{part}{RANK}|{digest(thing)}")


def _line(text):
    """In one piece, as ranks share a stream, which torchrun has unbuffered."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@functools.cache
def _clock():
    path = os.environ.get("ZOO_CLOCK")
    return open(f"{path}-{os.getpid()}", "a", buffering=1) if path else None  # noqa: PTH123 - to the end


def watch_clock(name, step, start):
    """Notes, apart from all that is compared, when an operation was done: the watch's states are known by time."""
    if (file := _clock()) is not None:
        file.write(f"{name}|{step}|{start}|{time.perf_counter_ns()}\n")


def do(name, step, function, *arguments):
    """Does an operation and tells its parts: those that its dict names, or the only one."""
    start = time.perf_counter_ns()
    try:
        parts = function(*arguments)
    except Exception as error:  # noqa: BLE001 - what an operation raises is part of what must be equal
        words = ADDRESS.sub("0x", f"{type(error).__name__}: {error}".replace("\n", " "))[:300]
        _line(f"! {name}|{step}|raised{RANK}|{words}")
        parts = {}
    watch_clock(name, step, start)
    for part, thing in parts.items() if isinstance(parts, dict) else [("outcome", parts)]:
        notify(name, step, part, thing)
    notify(name, step, "random state", torch.get_rng_state())


_paced = [0.0]


def pace(step):
    """The step's end: it takes STEP_SECONDS at least. Behind a certain one, where somebody is to attach, it waits until
    it has been done."""
    time.sleep(max(0.0, min(STEP_SECONDS, _paced[0] + STEP_SECONDS - time.monotonic())))
    path = os.environ.get("ZOO_ATTACH")
    if path and step == ATTACHED_FROM:
        with open(f"{path}-{os.getpid()}", "w"):  # noqa: PTH123 - pathlib stays unloaded
            pass
        until = time.monotonic() + 60
        while not os.path.exists(path) and time.monotonic() < until:  # noqa: PTH110
            time.sleep(0.01)
    _paced[0] = time.monotonic()


KINDS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler,
         torch.utils.data.DataLoader, torch.utils.data.Sampler, torch.utils.data.Dataset,
         torch.utils.data.dataloader._BaseDataLoaderIter)  # fmt: skip
"""Of what a training consists of."""


def objects_of_the_job():
    """What every object of a training's own that is alive has in its `vars()`, and which of steptime's refers to one or
    to what refers to one: no names and none, whatever framework has made them."""
    objects = [each for each in gc.get_objects() if issubclass(type(each), KINDS)]
    first = gc.get_referrers(*objects)
    holders = [*first, *gc.get_referrers(*(each for each in first if not isinstance(each, types.FrameType)))]
    names = {(type(each).__name__, tuple(sorted(vars(each)))) for each in objects}
    return {"names": sorted(names), "held by steptime": sorted({*filter(None, map(_of_steptime, holders))})}


def _of_steptime(holder):
    """Says what of steptime's this is: an object, a function, the globals of a module; "" of any other."""
    kind = type(holder)
    home = holder.get("__name__") if kind is dict else getattr(holder, "__module__", "") or kind.__module__
    home = home if isinstance(home, str) else kind.__module__
    ours = home.partition(".")[0] == "steptime" or kind.__module__.partition(".")[0] == "steptime"
    return f"{home}: {kind.__name__}" if ours else ""


# -- the loop --------------------------------------------------------------------------------------------------------


class Case:
    """One operation with the training that it is done in."""

    def __init__(self, name, function, model, steps, trains):
        torch.manual_seed(0)
        self.name, self.function, self.steps, self.trains = name, function, steps, trains
        self.model = model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self, step):
        torch.manual_seed(1000 + step)
        batch = torch.randn(8, 16), torch.randn(8, 4)
        if self.trains:
            notify(self.name, step, "loss", train(self.model, self.optimizer, batch))
        if step in self.steps:
            do(self.name, step, self.function, self.model, self.optimizer, step, batch)

    def end(self):
        notify(self.name, STEPS, "weights", dict(self.model.state_dict()))


def main():
    """All operations of the script, or those that are named."""
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    cases = [Case(*each) for each in OPERATIONS if not wanted or each[0] in wanted]
    for step in range(STEPS):
        for case in cases:
            case.step(step)
        pace(step)
    for case in cases:
        case.end()
