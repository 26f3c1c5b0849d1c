"""What the jobs of the clinic share: how much of their fault to show, and a stopwatch of their own.

The stopwatch is the clinic's truth: what a step takes is read off the job's own clock, in runs without any tool. Torch
computes with one thread: the faults are not about threads, but for the case that sets them itself.
"""

import argparse
import atexit
import json
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--amount", type=int, default=4, help="how much of the fault; 0: the healthy twin")
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--times", type=Path, help="where to write when each step ended, ns")
arguments = parser.parse_args()
amount, steps = arguments.amount, arguments.steps
_ends: list[int] = []


def lap() -> None:
    """A step has ended."""
    _ends.append(time.perf_counter_ns())


def _write() -> None:
    if arguments.times is not None and _ends:
        arguments.times.write_text(json.dumps(_ends))


atexit.register(_write)
