"""`steptime history [FOLDER]`: lists the recordings in a folder, finds since when a job has been slow, and removes old
recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.options import noise_option, seconds, size


@click.command("history")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"), metavar="[FOLDER]")
@click.option("--job", metavar="NAME", help="Only recordings of this job, a script's or module's name.")
@click.option("--commit", metavar="ID", help="Only recordings of this commit; its first digits are enough.")
@click.option("--machine", metavar="NAME", help="Only recordings whose host or device has this in its name.")
@click.option("--all", "everything", is_flag=True, help="List all recordings, not the newest ones only.")
@noise_option
@click.option(
    "--older-than",
    callback=lambda *given: seconds(*given, zero=True) if given[-1] is not None else None,
    metavar="TIME",
    help="Remove recordings older than this: 30d, 12h; 0s: all that have ended.",
)
@click.option("--keep-bytes", callback=size, metavar="SIZE", help="Remove the oldest until the others fit: 5GB.")
@click.option("--yes", is_flag=True, help="Remove them; without it, they are only listed.")
@click.option("--rebuild", is_flag=True, help="Rebuild the index from all recordings.")
@click.option("--json", "as_json", is_flag=True, help="Print the history as JSON on standard output.")
@click.option(
    "--goodput",
    is_flag=True,
    help="For each job, the share of the time since its first run that went into training steps, and where the rest "
    "went: start-up, compilation, evaluation, checkpoints, stalls, crashes.",
)
def command(**given: Any) -> int:
    """List the recordings in FOLDER (default: runs) by job and machine, with their steps and commits, and report
    with which recording a job became slower. Only files that steptime wrote are ever removed.

    \b
    steptime history
    steptime history runs --job train --all
    steptime history runs --job train --goodput
    steptime history runs --older-than 30d --keep-bytes 5GB
    """
    from steptime.cli.history import run

    return run(**given)
