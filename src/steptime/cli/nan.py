"""`steptime nan -- CMD…`: the first value that is not finite, with the operator and the line that made it."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.errors import UsageError


@click.command(
    "nan",
    short_help="Find the first value that is not finite: step, operator, line, cause.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--at", metavar="STEP", type=click.IntRange(1), help="Do not watch first: look at the operators of STEP.")
@click.option(
    "--max-steps",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=3,
    show_default=True,
    help="Steps beyond the one that was named in which every operator is looked at, if it does not come back there.",
)
@click.option("--continue", "go_on", is_flag=True, help="Let the watched job run on after something was found.")
@click.option("--no-replay", is_flag=True, help="Watch only: do not run the job a second time to find the line.")
@click.option("--uncontained", is_flag=True, help="Run again even where not all that is written can be contained.")
@click.option(
    "--recording",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of what is recorded. Default: runs/<job>-nan-<time>.",
)
@click.option("-o", "--output", metavar="FILE", help="Also write the account to FILE (.txt or .json).")
@click.option("--force", is_flag=True, help="Overwrite what exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON on standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing while the job runs.")
@click.argument("job", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT]...")
def command(
    job: tuple[str, ...],
    at: int | None,
    max_steps: int,
    go_on: bool,
    no_replay: bool,
    uncontained: bool,
    recording: Path | None,
    output: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run a training job as it is with a cheap watch on its losses and gradients. When one is not finite the job is
    ended, and a second run of the same command looks at every operator around that step: which one made it, at which
    line, forward or backward, of which values, and what is likely to blame. Options come before the command.

    Exit status: 1 when something was found, else that of the job.

    \b
    steptime nan -- python train.py
    steptime nan --at 1200 -- torchrun --nproc-per-node 2 train.py
    """
    from steptime.cli.hunting import Hunt, Wishes

    if at is not None and (go_on or no_replay):
        raise UsageError("usage", "--at is one instrumented run: it goes with neither --continue nor --no-replay.")
    wishes = Wishes(at, max_steps, go_on, not no_replay, uncontained, output, as_json, force, quiet)
    return Hunt(job, recording, wishes).go()
