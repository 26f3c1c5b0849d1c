"""How often a trial is wrong: what it adopts that changes nothing, and whether its interval holds the true gain.

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
from steptime.trials.trial import MAX_ROUNDS, MIN_ROUNDS

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
    kinds = (("nothing", 1.0), ("the least gain", MIN_GAIN), (f"{GAIN}×", GAIN))
    heads = " | ".join(f"{name}: adopted | covered" for name, _ in kinds)
    lines = [
        "# How often a trial is wrong",
        "",
        f"Simulated ({TRIALS} trials a cell, {VARIANTS} variants and a control, looked at after each round from the "
        f"{MIN_ROUNDS}th to the {MAX_ROUNDS}th until decided; `python -m benchmarks.rounds`): how often one variant is "
        "adopted that gains nothing, the least gain of 3 %, or 14 %, and how often its true gain lies in the interval "
        "that is printed then. The last columns: of those that were adopted, and rounds until the end, at 14 %.",
        "",
        f"| processes differ by | | {heads} | covered where adopted | rounds |",
        "|---|---|" + "---|" * (2 * len(kinds) + 2),
    ]
    for late in (0.0, LATE):
        for noise in NOISES:
            found = [tried(generator, noise, late, gain) for _, gain in kinds]
            cells = [f"{each:.1%}" for outcome in found for each in outcome[:2]]
            cells += [f"{found[-1][2]:.1%}", f"{found[-1][3]:.1f}"]
            reported = f"{late:.0%} of them late" if late else ""
            lines.append(f"| {noise:.0%} | {reported} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tried(generator: np.random.Generator, noise: float, late: float, gain: float) -> tuple[float, float, float, float]:
    """Of the first variant: the share of the trials that adopt it, the share whose last interval holds the gain, the
    same of those that adopt it, and the mean of the rounds."""
    shape = (TRIALS, MAX_ROUNDS, VARIANTS + 1)
    baselines = processes(generator, noise, late, (TRIALS, MAX_ROUNDS * (VARIANTS + 1) + 1))
    around = (baselines[:, :-1] + baselines[:, 1:]).reshape(shape) / 2
    ratios = around - processes(generator, noise, late, shape)
    variant, control = ratios[:, :, 0] + math.log(gain), ratios[:, :, VARIANTS]
    won, over, covered = np.zeros((3, TRIALS), bool)
    taken = np.full(TRIALS, MAX_ROUNDS)
    for rounds in range(MIN_ROUNDS, MAX_ROUNDS + 1):
        seen, nothing = variant[:, :rounds], control[:, :rounds] ** 2
        own, freedom = seen.var(1, ddof=1), 2 * rounds - 1
        variance = np.maximum(own, ((rounds - 1) * own + nothing.sum(1)) / freedom)
        reach = student(freedom, looks=True) * np.sqrt(variance / rounds)
        low, high = seen.mean(1) - reach, seen.mean(1) + reach
        least = np.maximum(math.log(MIN_GAIN), 2 * np.sqrt(nothing.mean(1) / rounds))
        now = ~over & ((low > least) | (high < math.log(MIN_GAIN)) | (rounds == MAX_ROUNDS))
        won |= now & (low > least)
        covered[now] = ((low <= math.log(gain)) & (high >= math.log(gain)))[now]
        taken[now] = rounds
        over |= now
    return (
        float(won.mean()),
        float(covered.mean()),
        float(covered[won].mean()) if won.any() else 0.0,
        float(taken.mean()),
    )


def processes(generator: np.random.Generator, noise: float, late: float, shape: tuple[int, ...]) -> np.ndarray:
    """Logarithms of what a step takes in processes of the same job."""
    held = (generator.random(shape) < late) * generator.exponential(LATER * noise, shape)
    return generator.normal(0.0, noise, shape) + held


if __name__ == "__main__":
    main()
