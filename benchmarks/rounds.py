"""How many rounds a trial needs: how often it adopts what changes nothing, and what gains, by the most rounds it has.

    python -m benchmarks.rounds --out benchmarks/results/rounds.md

Simulated, with the rule of `steptime try` (steptime/trials/judge.py): processes differ by a noise of their own, in the
logarithm; each variant and the control stand between two baselines; after the third round the variant is looked at
after each.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from steptime.quantities import student
from steptime.trials.conduct import MIN_ROUNDS

MOST = (6, 12, 24)
NOISES = (0.02, 0.05, 0.1, 0.2, 0.4)
GAIN, MIN_GAIN = 1.14, 1.03
LATE, LATER = 0.15, 3.0
"""Share of the processes that something holds up besides, and by how many times the noise, on average."""
TRIALS, VARIANTS = 4000, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    text = table(np.random.default_rng(0))
    wanted.out.write_text(text, encoding="utf-8")
    print(text)


def table(generator: np.random.Generator) -> str:
    """In Markdown."""
    most = " | ".join(f"within {each}" for each in MOST)
    lines = [
        "# How many rounds a trial needs",
        "",
        f"Simulated ({TRIALS} trials a cell, {VARIANTS} variants and a control; `python -m benchmarks.rounds`): how "
        f"often one variant is adopted, where it changes nothing, and where it is {GAIN} times as fast.",
        "",
        f"| processes differ by | | nothing: {most} | {GAIN}×: {most} |",
        "|---|---|" + "---|" * 2 * len(MOST),
    ]
    for late in (0.0, LATE):
        for noise in NOISES:
            cells = [f"{adopted(generator, noise, late, gain, each):.1%}" for gain in (1.0, GAIN) for each in MOST]
            told = f"{late:.0%} of them late" if late else ""
            lines.append(f"| {noise:.0%} | {told} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def adopted(generator: np.random.Generator, noise: float, late: float, gain: float, most: int) -> float:
    """The share of the trials that adopt the first variant within so many rounds."""
    shape = (TRIALS, most, VARIANTS + 1)
    baselines = processes(generator, noise, late, (TRIALS, most * (VARIANTS + 1) + 1))
    around = (baselines[:, :-1] + baselines[:, 1:]).reshape(shape) / 2
    ratios = around - processes(generator, noise, late, shape)
    variant, control = ratios[:, :, 0] + math.log(gain), ratios[:, :, VARIANTS]
    won = np.zeros(TRIALS, bool)
    for rounds in range(MIN_ROUNDS, most + 1):
        seen = variant[:, :rounds]
        low = seen.mean(1) - student(rounds - 1) * seen.std(1, ddof=1) / math.sqrt(rounds)
        noises = 2 * np.sqrt((control[:, :rounds] ** 2).mean(1) / rounds)
        won |= low > np.maximum(math.log(MIN_GAIN), noises)
    return float(won.mean())


def processes(generator: np.random.Generator, noise: float, late: float, shape: tuple[int, ...]) -> np.ndarray:
    """Logarithms of what a step takes in processes of the same job."""
    held = (generator.random(shape) < late) * generator.exponential(LATER * noise, shape)
    return generator.normal(0.0, noise, shape) + held


if __name__ == "__main__":
    main()
