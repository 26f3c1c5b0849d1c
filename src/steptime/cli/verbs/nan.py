"""`steptime nan -- CMD…`: finds the first value that is not finite, with the operator and the line that produced it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.options import WholeNumber, answer_options, files


@click.command("nan", context_settings={"allow_interspersed_args": False})
@click.option("--at", metavar="STEP", type=WholeNumber(1), help="Skip the first run and check the operators of STEP.")
@click.option(
    "--max-steps",
    metavar="N",
    type=WholeNumber(0, 100_000),
    default=3,
    show_default=True,
    help="Further steps in which every operator is checked, if the fault does not recur in the named step.",
)
@click.option("--continue", "go_on", is_flag=True, help="Let the first run continue after a fault was found.")
@click.option("--no-replay", is_flag=True, help="Do not run the job a second time to find the line.")
@click.option("--uncontained", is_flag=True, help="Run it again even if this system cannot protect your files from it.")
@click.option(
    "--recording",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the recording. Default: runs/<job>-nan-<time>.",
)
@answer_options("Also write FILE: what is printed (.txt, .md, .html or .json). Can be given several times.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress while the job runs.")
@click.argument("job", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT]...", shell_complete=files)
def command(**given: Any) -> int:
    """Run a training job and check its losses and gradients cheaply. When one is not finite, the job is ended, and a
    second run of the same command checks every operator around that step. The answer names the operator that produced
    the value, its line, forward or backward, the inputs, and the likely cause. Options come before the command.

    Exit status: 1 when something was found, else that of the job.

    \b
    steptime nan -- python train.py
    steptime nan --at 1200 -- torchrun --nproc-per-node 2 train.py
    """
    from steptime.cli.nan import run

    return run(**given)
