"""`steptime try RECORDING` or `steptime try -- CMD…`: tries the fixes for the findings on the job itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from steptime.cli.options import (
    FiniteNumber,
    Function,
    RecordingOrCommand,
    WholeNumber,
    numbers_of,
    outputs_option,
    seconds,
    variant_options,
)


def budget_option(default: str) -> Callable[[Function], Function]:
    """Option --budget of a verb, which sets `budget`; its time starts when the option is parsed."""
    return click.option(
        "--budget",
        callback=_budget,
        metavar="TIME",
        default=default,
        show_default=True,
        help="Time for all of it: 90s, 10m, 2h.",
    )


min_gain_option = click.option(
    "--min-gain",
    metavar="PERCENT",
    type=FiniteNumber(0, 100),
    callback=lambda _, __, percent: percent / 100,
    default=3.0,
    show_default=True,
    help="Smallest gain that is worth a change.",
)


def _budget(*given: Any) -> object:
    from steptime.trials.trial import Budget

    return Budget(seconds(*given))


def _goal(context: click.Context, option: click.Parameter, word: str) -> object:
    from steptime.advice.fix import Goal

    return Goal(word)


@click.command("try", cls=RecordingOrCommand, context_settings={"allow_interspersed_args": False})
@budget_option("10m")
@click.option(
    "--max-trials", metavar="N", type=WholeNumber(1, 50), default=6, show_default=True, help="Fixes to try at most."
)
@click.option(
    "--fix",
    "fixes",
    metavar="CODE",
    multiple=True,
    help="Try this fix (RM101, or its name), whatever the findings are. Can be given several times.",
)
@click.option(
    "--workers",
    metavar="N,N",
    callback=lambda _, __, words: numbers_of(words, "--workers", least=0),
    default="",
    help="Instead, try these values of num_workers, such as 1,2,4,8, and report the curve and the measured optimum.",
)
@min_gain_option
@click.option(
    "--goal",
    type=click.Choice(["speed", "memory"]),
    callback=_goal,
    default="speed",
    show_default=True,
    help="What to improve: the step time, or peak memory (the report shows what that costs in time).",
)
@click.option("--resume", metavar="DIR", type=click.Path(path_type=Path), help="Continue an interrupted trial.")
@click.option("--write", is_flag=True, help="Apply the patch to the job's own files if it was run and adopted.")
@outputs_option(
    "Also write FILE: the printed answer (.txt, .md), the verdicts (.json), the page (.html), or all results "
    "(.jsonl). Can be given several times."
)
@click.option("--separate", is_flag=True, help="Run each fix in processes of its own; switch none within one process.")
@click.option("--keep", is_flag=True, help="Keep the recordings of all variants.")
@variant_options
def command(**given: Any) -> int:
    """Try the fixes for a recording's findings, each in a fresh process of the same unmodified command, in turns
    with the job as it is. A fix is adopted if its gain exceeds noise and --min-gain, and its losses and gradients
    are as promised. --goal memory tries every fix that saves memory and adopts those that certainly lower the
    peak. Options come before the command. Without a recording or a command: the newest recording in runs/.

    \b
    steptime try
    steptime try runs/train-20260801-101500
    steptime try --budget 5m -- python train.py
    steptime try --goal memory runs/train-20260801-101500
    steptime try --workers 1,2,4,8 runs/train-20260801-101500
    steptime try --resume runs/train-try-20260801-102000
    """
    from steptime.cli.trial import run

    return run(**given)
