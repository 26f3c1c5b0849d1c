"""How far two processes of the same job differ that run one after the other, and that take turns.

    python -m benchmarks.turns [--shapes dense loader] [--rounds 12] [--steps 120 600] >FILE.md

A round of a trial without a candidate, in both ways by turns: a baseline, a control and another baseline one by one,
and a baseline and a control that take turns; on a CUDA device where there is one. The log-ratio of baseline and control
is zero but for what differs between processes; its root mean square is what a gain must stand out from.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from math import exp, sqrt
from pathlib import Path
from statistics import fmean

from benchmarks.false_wins import JOB, SHAPES
from benchmarks.kept import machine
from steptime.changes import VariantOptions
from steptime.trials.containment import Workspace, leave
from steptime.trials.execute import ScheduledRun
from steptime.trials.executor import LocalExecutor
from steptime.trials.judge import comparisons_of
from steptime.trials.trial import AS_IT_IS, CONTROL, Run, Variant

ALONE, TURNS = "one by one", "in turns"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["dense", "loader"], choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, nargs="+", default=[120, 600], help="of a process")
    options = parser.parse_args()
    about = machine()
    print("# Processes that take turns\n")
    print(f"Log-ratios of a job and itself, `python -m benchmarks.turns`. {about}.\n")
    print("| job | steps of a process | way | rounds | root mean square | largest | seconds a round |")
    print("|---|---|---|---|---|---|---|")
    for shape in options.shapes:
        for steps in options.steps:
            for way, (ratios, seconds) in measured(shape, steps, options.rounds).items():
                spread, largest = sqrt(fmean(each**2 for each in ratios)), max(map(abs, ratios))
                reported = f"{exp(spread) - 1:.1%} | {exp(largest) - 1:.1%} | {seconds:.1f}"
                print(f"| {shape} | {steps} | {way} | {len(ratios)} | {reported} |", flush=True)


def measured(shape: str, steps: int, rounds: int) -> dict[str, tuple[list[float], float]]:
    """Of both ways the log-ratios of each round, and the mean seconds of one."""
    ratios: dict[str, list[float]] = {ALONE: [], TURNS: []}
    seconds: dict[str, list[float]] = {ALONE: [], TURNS: []}
    control = Variant(CONTROL)
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch, "job")
        job.mkdir()
        (job / JOB.name).write_text(JOB.read_text(encoding="utf-8"), encoding="utf-8")
        workspace = Workspace((sys.executable, JOB.name, shape), Path(scratch, "trial"), job)
        try:
            for round_ in range(rounds):
                for way, order in ((ALONE, (AS_IT_IS, control, AS_IT_IS)), (TURNS, (AS_IT_IS, control))):
                    runs = played(workspace, order[:: -1 if round_ % 2 else 1], steps, round_, alternating=way == TURNS)
                    ratios[way] += [float(each.log_ratio()) for each in comparisons_of(CONTROL, runs)]
                    seconds[way].append(sum(run.seconds for run in runs))
        finally:
            leave(workspace)
    return {way: (ratios[way], fmean(seconds[way])) for way in ratios}


def played(
    workspace: Workspace, order: tuple[Variant, ...], steps: int, round_: int, *, alternating: bool
) -> tuple[Run, ...]:
    """The processes of one round."""
    options = VariantOptions(steps, alternating=alternating)
    block = [ScheduledRun(variant, 0, round_, place, options) for place, variant in enumerate(order)]
    return tuple(LocalExecutor(alternating=alternating).run(workspace, [block], lambda *_: None))


if __name__ == "__main__":
    main()
