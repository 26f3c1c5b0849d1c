"""What the watch of `steptime nan` costs a step: python -m benchmarks.nan_watch [--json FILE].

A small encoder with steps of some 10 ms is trained in this process, in blocks of steps with the watch and without it,
in turns; between blocks everything of the watch is taken away or put back. What is compared is CPU time of the training
thread, because other work on the machine lengthens wall clocks and not these; of the pairs of neighbouring blocks the
median difference counts, with its distribution-free 95 % interval. A control compares blocks without the watch.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from steptime.probe.numerics import monitor as watch_module
from steptime.probe.numerics.job import GrowingNumerics, Job
from steptime.quantities import median_of

BLOCK, WARM_UP = 16, 64


class Endless:
    """An ending that never comes."""

    def boundary(self, step: int) -> None:
        """No other rank."""

    def end(self, step: int) -> None:
        """Not reached: everything stays finite."""


class Switch:
    """Takes the watch away and puts it back."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._plain = torch.autograd.backward
        folder = tempfile.mkdtemp(prefix="nan-watch-")
        self.watch = watch_module.Monitor({"go_on": True}, GrowingNumerics(folder, "watch"), Endless())  # type: ignore[arg-type]
        self.job = Job(self.watch)
        self.job.install()
        self.watch.install()
        self._watched = torch.autograd.backward
        self._slots: dict[nn.Module, Any] = {}

    def set(self, on: bool) -> None:
        """The residue while it is off: two hooks of the optimizer that return at once."""
        torch.autograd.backward = self._watched if on else self._plain
        self.job._active = on
        self.watch._start = 0  # its share of a step is that of blocks with it
        for module in self._model.modules():
            slot = module.__dict__.pop("_compiled_call_impl", None)
            if slot is not None:
                self._slots[module] = slot
            if on and module in self._slots:
                module.__dict__["_compiled_call_impl"] = self._slots[module]


def encoder(width: int, layers: int) -> nn.Module:
    """A causal language model without its head's softmax; nothing in it is compiled."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Linear(16, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, 16))


def trainer(model: nn.Module, batch: int, length: int) -> Callable[[], None]:
    """One step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, targets = torch.randn(batch, length, 16), torch.randn(batch, length, 16)

    def step() -> None:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def block(step: Callable[[], None]) -> float:
    """CPU seconds of a step."""
    start = time.thread_time()
    for _ in range(BLOCK):
        step()
    return (time.thread_time() - start) / BLOCK


def measure(width: int, layers: int, batch: int, length: int, pairs: int) -> dict[str, Any]:
    """Costs in percent of a step, with the control's."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = encoder(width, layers)
    switch = Switch(model)
    step = trainer(model, batch, length)
    for _ in range(WARM_UP):
        step()
    costs, control, steps = [], [], []
    for turn in range(pairs):
        order = (False, True, False) if turn % 2 else (True, False, False)
        times: dict[bool, list[float]] = {True: [], False: []}
        for on in order:
            switch.set(on)
            times[on].append(block(step))
        costs.append(100 * (times[True][0] / times[False][0] - 1))
        control.append(100 * (times[False][1] / times[False][0] - 1))
        steps += times[False]
    return {
        "step_ms": 1e3 * sorted(steps)[len(steps) // 2],
        "parameters": sum(1 for _ in model.parameters()),
        "modules": sum(1 for _ in model.modules()),
        "modules_looked_at_every": switch.watch._outputs.stride,
        "gradients_looked_at_every": switch.watch._gradient_stride,
        "watch_percent": _reported(costs),
        "control_percent": _reported(control),
    }


def _reported(values: list[float]) -> list[float]:
    estimate = median_of(np.asarray(values), "1")
    return [round(each, 2) for each in (estimate.value, estimate.low, estimate.high)]


SHAPES = {"10 ms step": (64, 2, 8, 32), "40 ms step": (128, 4, 8, 48)}
"""width, layers, batch and length of sequence."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shape", choices=SHAPES, help="one of the models, in this process")
    arguments = parser.parse_args()
    if arguments.shape is not None:
        print(json.dumps(measure(*SHAPES[arguments.shape], arguments.pairs)))
        return
    results = {}
    for shape in SHAPES:  # each in a process of its own: torch is patched once
        words = [sys.executable, __file__, "--pairs", str(arguments.pairs), "--shape", shape]
        results[shape] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    found = {"torch": torch.__version__, "machine": platform.processor() or platform.machine(), "results": results}
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    if arguments.json is not None:
        arguments.json.write_text(text)


if __name__ == "__main__":
    main()
