"""Work of `steptime history`, whose options are in verbs/history.py."""

from __future__ import annotations

import time
from pathlib import Path

from steptime.cli.exit_codes import say
from steptime.compare.history import History
from steptime.errors import UsageError

MOST_NAMED = 10
"""Most files of the user's in a recording that are named; others are counted."""


def _prune(history: History, older_than: float | None, keep_bytes: int | None, *, yes: bool) -> None:
    from steptime.cli.delivery import hand_over
    from steptime.compare.history_answer import answer_of_doomed
    from steptime.compare.history_index import doomed_of
    from steptime.recording.inventory import remove

    doomed = doomed_of(history.entries, time.time_ns(), older_than=older_than, keep_bytes=keep_bytes)
    for each in doomed if yes else ():
        strange = remove(Path(each.entry.path))
        if strange:
            more = f" and {len(strange) - MOST_NAMED} more" if len(strange) > MOST_NAMED else ""
            say(f"Kept in {each.entry.path}, as steptime did not write it: {', '.join(strange[:MOST_NAMED])}{more}")
    hand_over(answer_of_doomed(doomed, done=yes), (), as_json=False, force=False)


def run(
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
    as_json: bool,
    goodput: bool,
) -> int:
    """Lists, or removes, recordings. Returns the exit status. Raises SteptimeError."""
    from dataclasses import replace

    from steptime.cli.delivery import hand_over
    from steptime.compare import history_index
    from steptime.compare.history import history_of
    from steptime.compare.history_answer import answer_of
    from steptime.quantities import BETWEEN_RUNS

    if yes and older_than is None and keep_bytes is None:
        raise UsageError("usage", "--yes needs --older-than or --keep-bytes.")
    if goodput and (as_json or older_than is not None or keep_bytes is not None):
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
        _prune(history, older_than, keep_bytes, yes=yes)
    elif goodput:
        from steptime.compare.goodput import answer_of as answer_of_goodput, goodput_of

        found = [each for track in history.tracks if (each := goodput_of(track)) is not None]
        hand_over(answer_of_goodput(found), (), as_json=False, force=False)
    else:
        hand_over(answer_of(history, everything=everything or job is not None), (), as_json=as_json, force=False)
    return 0
