"""`steptime history [FOLDER]`: lists recordings, finds since when a job has been slow, and removes old ones."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery, gathered, json_option, noise_option, seconds, size
from steptime.errors import UsageError

MOST_NAMED = 10
"""Most files of the user's in a recording that are named; others are counted."""


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
@gathered(json_option("the history as JSON"))
@click.option(
    "--goodput",
    is_flag=True,
    help="For each job, the share of the time since its first run that went into training steps, and where the rest "
    "went: start-up, compilation, evaluation, checkpoints, stalls, crashes.",
)
def command(
    folder: Path,
    job: str | None,
    commit: str | None,
    machine: str | None,
    everything: bool,
    noise: float | None,
    older_than: float | None,
    keep_bytes: int | None,
    yes: bool,
    rebuild: bool,
    goodput: bool,
    delivery: Delivery,
) -> int:
    """List the recordings in FOLDER (default: runs) by job and machine, with their steps and commits, and report
    with which recording a job became slower. Only files that steptime wrote are ever removed.

    \b
    steptime history
    steptime history runs --job train --all
    steptime history runs --job train --goodput
    steptime history runs --older-than 30d --keep-bytes 5GB
    """
    from steptime.cli.delivery import hand_over
    from steptime.compare import history_index
    from steptime.compare.history import history_of
    from steptime.compare.history_answer import answer_of
    from steptime.quantities import BETWEEN_RUNS

    if yes and older_than is None and keep_bytes is None:
        raise UsageError("usage", "--yes needs --older-than or --keep-bytes.")
    if goodput and (delivery.as_json or older_than is not None or keep_bytes is not None):
        raise UsageError("usage", "--goodput prints text, and removes nothing: leave the other options out.")
    if rebuild:
        history_index.rebuild(folder)
    noise_floor = BETWEEN_RUNS if noise is None else noise / 100
    history = history_index.read_history(folder, noise_floor=noise_floor)
    wanted = [
        entry
        for entry in history.entries
        if (job is None or entry.job == job)
        and (commit is None or entry.commit.startswith(commit.lower()))
        and (machine is None or machine.lower() in entry.machine.lower())
    ]
    history = replace(history_of(str(folder), wanted, noise_floor=noise_floor), problems=history.problems)
    if older_than is not None or keep_bytes is not None:
        from steptime.compare.history_answer import answer_of_doomed
        from steptime.compare.history_index import doomed_of
        from steptime.recording.inventory import remove

        doomed = doomed_of(history.entries, time.time_ns(), older_than=older_than, keep_bytes=keep_bytes)
        for old in doomed if yes else ():
            strange = remove(Path(old.entry.path))
            if strange:
                more = f" and {len(strange) - MOST_NAMED} more" if len(strange) > MOST_NAMED else ""
                say(f"Kept in {old.entry.path}, as steptime did not write it: {', '.join(strange[:MOST_NAMED])}{more}")
        hand_over(answer_of_doomed(doomed, done=yes))
    elif goodput:
        from steptime.compare.goodput import answer_of as answer_of_goodput, goodput_of

        found = [each for track in history.tracks if (each := goodput_of(track)) is not None]
        hand_over(answer_of_goodput(found))
    else:
        hand_over(answer_of(history, everything=everything or job is not None), delivery)
    return 0
