"""A simulated shared machine: its speed comes in bottlenecks, steps depend on each other, and some stall."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.trials.trial import BASELINE, CONTROL, AppliedChange, MachineLoad, Run, Variant

STEPS = 30
STEP_NS = 40e6
LOSSES = tuple(2.0 / (1 + 0.1 * step) for step in range(STEPS))


class SharedMachine:
    """Step times of processes that run one after the other.

    change: probability that the next process meets another bottleneck; spread: of the bottlenecks' log-speeds.
    """

    def __init__(self, seed: int, change: float = 0.25, spread: float = 0.3, stalls: float = 0.03) -> None:
        self._generator = np.random.default_rng(seed)
        self._change, self._spread, self._stalls = change, spread, stalls
        self._level = 0.0

    def process(self, speed: float = 1.0) -> tuple[int, ...]:
        """STEPS steps of a process, ns. speed: how many times as fast as the baseline."""
        draw = self._generator
        if draw.random() < self._change:
            self._level = draw.normal(0, self._spread)
        noise, steps = 0.0, []
        for _ in range(STEPS):
            noise = 0.7 * noise + draw.normal(0, 0.02)
            stall = 1 + draw.exponential(2.0) if draw.random() < self._stalls else 1.0
            steps.append(STEP_NS / speed * np.exp(self._level + noise + draw.normal(0, 0.01)) * stall)
        return tuple(map(int, steps))


def run(variant: str, position: int, steps: Sequence[int] = (), **more: object) -> Run:
    """A timed run that went well, with the losses of seed 0."""
    fields: dict[str, object] = {
        "stage": 0,
        "round": 0,
        "seed": 0,
        "rehearsal": False,
        "failure": "",
        "seconds": 4.0,
        "losses": LOSSES,
        "load": MachineLoad(0.1),
        "changes": (AppliedChange("loader", True, True, "1 loader"),) if variant.startswith("RM") else (),
    }
    fields.update(more)
    return Run(variant=variant, position=position, step_ns=tuple(int(step) for step in steps), **fields)  # type: ignore[arg-type]


def trial(
    machine: SharedMachine, variant: Variant, rounds: int = 3, speed: float = 1.0, **more: object
) -> tuple[Run, ...]:
    """Rounds of one variant and its control between baselines, in turns, as `conduct` runs them."""
    runs = [run(BASELINE, 0, machine.process())]
    for number in range(rounds):
        order = [variant.name, CONTROL] if number % 2 == 0 else [CONTROL, variant.name]
        for name in order:
            own = more if name == variant.name else {}
            runs.append(run(name, len(runs), machine.process(speed if name == variant.name else 1.0), **own))
        seed = number + 1 if number < 2 else 0
        losses = tuple(loss + 0.02 * seed for loss in LOSSES)
        runs.append(run(BASELINE, len(runs), machine.process(), seed=seed, losses=losses))
    return tuple(runs)
