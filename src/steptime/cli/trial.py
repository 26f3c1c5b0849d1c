"""`steptime try RECORDING` or `steptime try -- CMD…`: the remedies for what was found, tried on the job itself."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.cli.duration import seconds
from steptime.cli.options import arm_options
from steptime.errors import UsageError


@click.command(
    "try",
    short_help="Try the remedies for what was found, and prove which of them pay.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--budget",
    callback=seconds,
    metavar="TIME",
    default="10m",
    show_default=True,
    help="Time for all of it: 90s, 10m, 2h.",
)
@click.option(
    "--max-trials",
    metavar="N",
    type=click.IntRange(1, 50),
    default=6,
    show_default=True,
    help="Remedies to try at most.",
)
@click.option(
    "--min-gain",
    metavar="PERCENT",
    type=click.FloatRange(0, 100),
    default=3.0,
    show_default=True,
    help="Least gain that is worth a change.",
)
@click.option(
    "--goal",
    type=click.Choice(["speed", "memory"]),
    default="speed",
    show_default=True,
    help="What to gain: shorter steps, or a lower peak of memory at a cost in time that is told.",
)
@click.option("--resume", metavar="DIR", type=click.Path(path_type=Path), help="Go on with an interrupted trial.")
@click.option("--write", is_flag=True, help="Apply the patch to the job's own files when it was run and adopted.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Also write FILE: what is printed (.txt), the page (.html), or all results (.jsonl).",
)
@click.option("--keep", is_flag=True, help="Keep the recordings of all arms.")
@arm_options
def command(
    budget: float,
    max_trials: int,
    min_gain: float,
    goal: str,
    uncontained: bool,
    resume: Path | None,
    write: bool,
    keep: bool,
    output: str | None,
    force: bool,
    as_json: bool,
    executor: str,
    quiet: bool,
    target: tuple[str, ...],
) -> int:
    """Try the remedies for what was found in a recording, each in a fresh process of the same unmodified command, in
    turns with the job as it is. A remedy is adopted when its speed beats noise and the least gain, and its losses and
    gradients are what it promises. With --goal memory, what takes less memory is tried, whatever was found, and
    adopted when the peak is lower beyond doubt. Options come before RECORDING or the command.

    \b
    steptime try runs/train-20260801-101500
    steptime try --budget 5m -- python train.py
    steptime try --goal memory runs/train-20260801-101500
    steptime try --resume runs/train-try-20260801-102000
    """
    from steptime.cli.trying import Wishes, begin, check_output, go_on, tell_trial
    from steptime.remedies.remedy import Goal
    from steptime.trials.budget import Budget

    if bool(target) == (resume is not None):
        raise UsageError("usage", "Give a recording, or a command behind --, or --resume with the folder of a trial.")
    check_output(output, force=force)
    wishes = Wishes(Budget(budget), max_trials, min_gain / 100, uncontained, write, keep, quiet, executor, Goal(goal))
    told = go_on(resume, wishes) if resume is not None else begin(target, wishes)
    return tell_trial(told, output, as_json=as_json)
