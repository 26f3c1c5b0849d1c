"""The truth of a case: what its steps take without any tool, by the job's own stopwatch."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clinic.cases import Case
from benchmarks.started import JobFailed, last_words

PROBING = 4
"""The amount of the fault that a first look is taken at, and by how much it grows until the fault can be seen."""
SEEN = 1.2
"""Of the healthy step: less could be chance."""
RUNS = 2
"""Of the twin and of each amount: one process differs from the next by some percent, which one run does not show."""
TIMEOUT = 300
STEADY = 1 / 3
"""Of the steps: what comes before is warm-up."""


@dataclass(frozen=True)
class Dose:
    """An amount of the fault. share: of a step that it takes, as it was measured; wanted: as it was asked for.
    healthy_ns, step_ns: mean step without and with it. low, high: of the share, over all pairs of runs with and
    without."""

    amount: int
    wanted: float
    share: float
    healthy_ns: float
    step_ns: float
    low: float = 0.0
    high: float = 0.0


def environment() -> dict[str, str]:
    """No accelerator, and nothing said about threads: the jobs' stopwatch does that."""
    message = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**message, "CUDA_VISIBLE_DEVICES": ""}


def command(case: Case, amount: int, *further: str) -> list[str]:
    """How a user would start the job."""
    words = [str(case.script), "--amount", str(amount), *further]
    if case.ranks == 1:
        return [sys.executable, *words]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}", *words]


def step_time(case: Case, amount: int) -> float:
    """Mean of the steady steps of a bare run, ns. Raises JobFailed."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        words = command(case, amount, "--times", str(times))
        try:
            done = subprocess.run(
                words, env=environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise JobFailed(f"took more than {TIMEOUT} s") from None
        if done.returncode or not times.exists():
            raise JobFailed(last_words(done.stderr) or "no steps")
        ends = json.loads(times.read_text())
    laps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return statistics.fmean(laps[int(len(laps) * STEADY) :])


def doses(case: Case, wanted: list[float]) -> list[Dose]:
    """The twin, and the amounts that come nearest to the wanted shares; amounts that occur twice are given once."""
    healthy = [step_time(case, 0) for _ in range(RUNS)]
    usual = statistics.fmean(healthy)
    found = [Dose(0, 0.0, 0.0, usual, usual)]
    if case.most == 0:
        return found
    amount_for = _amounts(case, usual)
    for share in wanted:
        amount = amount_for(share)
        if share and all(amount != dose.amount for dose in found):
            found.append(dose_of(amount, share, healthy, [step_time(case, amount) for _ in range(RUNS)]))
    return found


def _amounts(case: Case, healthy: float) -> Callable[[float], int]:
    """Which amount takes which share of a step: a line through two probed amounts, a small one and one for half."""
    amount = min(PROBING, case.most)
    while (step := step_time(case, amount)) < SEEN * healthy and PROBING * amount <= min(case.most, PROBING**5):
        amount *= PROBING
    slope = max((step - healthy) / amount, 1e-3 * healthy)
    half = min(max(round(healthy / slope), 1), case.most)
    if half != amount:
        slope = max((step_time(case, half) - step) / (half - amount), 1e-3 * healthy)
    return lambda share: min(max(round(amount + (healthy / (1 - share) - step) / slope), 1), case.most)


def dose_of(amount: int, wanted: float, healthy: list[float], faulty: list[float]) -> Dose:
    """The share that a fault takes, from the mean steps of some runs without and some with it."""
    usual, step = statistics.fmean(healthy), statistics.fmean(faulty)
    low, high = 1 - max(healthy) / min(faulty), 1 - min(healthy) / max(faulty)
    return Dose(amount, wanted, 1 - usual / step, usual, step, low, high)
