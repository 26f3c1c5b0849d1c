"""`steptime judge`: checks whether a change is faster, and still the same training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from steptime.cli.options import FiniteNumber, RecordingOrCommand, outputs_option, variant_options
from steptime.cli.verbs.trial import budget_option, min_gain_option
from steptime.errors import UsageError


def _pattern(pattern: str | None) -> str | None:
    """Validated value of --metric. Raises UsageError."""
    if pattern is None:
        return None
    try:
        groups = re.compile(pattern, re.MULTILINE).groups
    except re.error as error:
        raise UsageError("usage", f"--metric {pattern!r} is not a regular expression: {error}.") from None
    if not groups:
        raise UsageError(
            "usage", f"--metric {pattern!r} has no group. Put parentheses around the number, as in 'acc=([0-9.]+)'."
        )
    return pattern


def _target(loss: float | None) -> object:
    from steptime.trials.until_loss import LossTarget

    return LossTarget(loss) if loss is not None else None


@click.command("judge", cls=RecordingOrCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--diff",
    "diffs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A unified diff, as git diff writes it. This and the next four options can be given several times.",
)
@click.option(
    "--ref",
    "revisions",
    multiple=True,
    metavar="REF",
    help="The files of a commit or branch; A..B compares two of them.",
)
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="KEY=VALUE",
    help="An environment variable. All --env together are one candidate.",
)
@click.option("--args", "words", multiple=True, metavar="WORDS", help="Arguments to append to the command.")
@click.option("--against", "commands", multiple=True, metavar="COMMAND", help="Another command.")
@click.option(
    "--any-training", is_flag=True, help="Judge speed alone, for candidates that are meant to train something else."
)
@click.option("--low-precision", is_flag=True, help="Allow gradients to differ by the rounding of a 16-bit dtype.")
@click.option(
    "--metric",
    metavar="REGEX",
    callback=lambda _, __, pattern: _pattern(pattern),
    help="Compare a number that the command prints: the first group of the last match in standard output. For scripts "
    "without training steps. Higher is better.",
)
@click.option(
    "--until-loss",
    type=FiniteNumber(),
    metavar="LOSS",
    callback=lambda _, __, loss: _target(loss),
    help="Compare the time to a training loss, whatever else the candidates change: each process runs until the mean "
    "over the last tenth of its steps is LOSS or less.",
)
@click.option("--lower-is-better", is_flag=True, help="With --metric: lower is better (a time, or a cost).")
@budget_option("10m")
@min_gain_option
@click.option("--resume", metavar="DIR", type=click.Path(path_type=Path), help="Continue an interrupted judgement.")
@outputs_option(
    "Also write FILE: what is printed (.txt), a table for a pull request (.md), the verdicts (.json), the page "
    "(.html), or all results (.jsonl). Can be given several times."
)
@variant_options
def command(**given: Any) -> int:
    """Run a job unchanged and with given changes, in turns, each in a fresh process whose files are contained. The
    verdict on each change: faster, gain of the step only (a small part of the run), slower, no difference, not faster
    (it may be slower), undecided, different training, suspicious (it does less work, or tampers with the measurement),
    or broken. Options come before the command. Exit status: 0 if every candidate is faster or makes no difference to
    the run, 1 if one is worse, 3 if one may be worse.

    \b
    steptime judge --diff faster.patch -- python train.py
    steptime judge --ref main..HEAD -- python train.py
    steptime judge --metric "(\\S+) images/s" --diff faster.patch -- python infer.py
    steptime judge --until-loss 2.5 --budget 1h --args "--lr 0.01" -- python train.py
    steptime judge --env OMP_NUM_THREADS=4 --args "--workers 2" runs/train-20260801-101500
    """
    from steptime.cli.judge import run

    return run(**given)
