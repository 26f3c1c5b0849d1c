"""The answer of `steptime history`: since when a job is slow, and its recordings."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from steptime.answer.answer import Answer, Part
from steptime.answer.tables import Table, duration, table_of, word
from steptime.compare.compare import level_text
from steptime.compare.history import Entry, History, JobHistory, slowed
from steptime.compare.history_index import Doomed
from steptime.quantities import Jump, format_bytes, format_count, format_duration, format_share, format_spread

NEWEST = 6
"""Recordings of a job that are listed unless all are requested."""
MOST_JOBS = 8


def answer_of(history: History, *, everything: bool = False) -> Answer:
    """Answer about the recordings in a folder. everything: True to list all recordings of all jobs."""
    entries, jobs = history.entries, len(history.tracks)
    size = format_bytes(sum(entry.bytes for entry in entries))
    count = f"{format_count(len(entries), 'recording')} of {format_count(jobs, 'job')} in {history.folder}, {size}"
    slow = (each for each in history.tracks if slowed(each) is not None)
    first = next(slow, next(iter(history.tracks), None))
    sentence = sentence_of(first) if first is not None else ""
    headline = f"{first.job} on {first.machine}: {sentence[:1].lower()}{sentence[1:]}" if first is not None else count
    displayed = history.tracks if everything else history.tracks[:MOST_JOBS]
    all_ = f"steptime history {shlex.quote(history.folder)} --all"
    notes = [f"and {jobs - len(displayed)} more jobs: {all_}"] if jobs > len(displayed) else []
    if history.variants:
        notes.append(f"{format_count(len(history.variants), 'recording')} of trials or of steptime nan, in no trend")
    return Answer(
        title=f"Recordings in {history.folder}",
        headline=headline,
        head=(count,) if first is not None else (),
        parts=tuple(
            _track(track, number, "" if track is first else sentence_of(track), everything=everything)
            for number, track in enumerate(displayed)
        ),
        notes=(*notes, *history.problems),
        more=all_,
        next_command=next_command(history),
        data=history,
    )


def _track(track: JobHistory, number: int, sentence: str, *, everything: bool) -> Part:
    """Newest recordings of a job, the last one last. sentence: their summary."""
    newest = track.entries if everything else track.entries[-NEWEST:]
    title = f"{track.job} on {track.machine}{f': {sentence}' if sentence else ''}"
    made = table_of(
        f"job-{number}", title, "", newest,
        word("begun", "begun", _when),
        word("commit", "commit", lambda entry: entry.commit[:8] + ("+" if entry.commit and entry.dirty else "")),
        duration("step", "step_ns", lambda entry: entry.step.value if entry.step is not None else None, barred=True),
        word("", "spread", _spread),
        word("recording", "recording", lambda entry: Path(entry.path).name),
        word(" ", "load", lambda entry: "other programs ran" if entry.busy else ""),
    )  # fmt: skip
    return replace(made, hidden=len(track.entries) - len(newest))


def _spread(entry: Entry) -> str:
    if entry.step is None:
        return "still running" if entry.running else entry.problem
    return format_spread(entry.step)


def _when(entry: Entry) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.started_epoch_ns / 1e9))


def sentence_of(track: JobHistory) -> str:
    """Sentence on when a job became slow, or that its level is unchanged."""
    if len(track.reported) < 2:
        return "No trend yet: only one measured recording." if track.reported else "None of its recordings has a step."
    jump, word = slowed(track), "slow"
    if jump is None and track.levels:
        jump, word = track.levels[-1], "faster"
    reported = level_text([entry.step.value for entry in track.reported if entry.step is not None], "recordings")
    reported = f"It {reported}."
    if jump is not None:
        reported = (
            f"It got {word} with {Path(track.reported[jump.at].path).name}: {_change(jump)}, {_since(track, jump)}."
        )
    busy = sum(bool(entry.busy) for entry in track.reported)
    return f"{reported} Other processes ran during {busy} of them, which may be the cause." if busy else reported


def _change(jump: Jump) -> str:
    word = "longer" if jump.after > jump.before else "shorter"
    share = format_share(abs(jump.after / jump.before - 1))
    caveat = "" if jump.confirmed else " (not yet confirmed by a later run)"
    return f"{format_duration(jump.before)} to {format_duration(jump.after)}, {share} {word}{caveat}"


def _since(track: JobHistory, jump: Jump) -> str:
    """Clause on what else changed at the jump."""
    before, after = track.reported[jump.at - 1], track.reported[jump.at]
    changed = [
        name
        for name, one, other in (
            ("the commit", (before.commit, before.dirty), (after.commit, after.dirty)),
            ("the command", before.command, after.command),
            ("torch", before.torch, after.torch),
        )
        if one != other
    ]
    if not changed:
        return "with the same commit, command and torch"
    return f"and with it {' and '.join(changed)}"


def next_command(history: History) -> str:
    """Most useful next command: a comparison around the newest slowdown, else of the two newest runs; "" if there are
    none."""
    jumped = ((track, jump) for track in history.tracks if (jump := slowed(track)) is not None)
    found = [track.reported[jump.at - 1 : jump.at + 1] for track, jump in jumped]
    found += [track.reported[-2:] for track in history.tracks if len(track.reported) > 1]
    return f"steptime compare {' '.join(shlex.quote(entry.path) for entry in found[0])}" if found else ""


def answer_of_doomed(doomed: Sequence[Doomed], *, done: bool) -> Answer:
    """Answer that lists the recordings to remove. done: True if they were removed."""
    size = format_bytes(sum(each.entry.bytes for each in doomed))
    head = "Removed" if done else "Would remove"
    return Answer(
        title=head,
        headline=f"{head} {format_count(len(doomed), 'recording')}, {size}",
        parts=(_doomed(doomed),),
        notes=("Nothing was removed. Remove them with --yes.",) if doomed and not done else (),
    )


def _doomed(doomed: Sequence[Doomed]) -> Table:
    return table_of(
        "doomed", "", "", doomed,
        word("begun", "begun", lambda each: _when(each.entry)),
        word("size", "size", lambda each: format_bytes(each.entry.bytes)),
        word("why", "why", lambda each: "too old" if each.why == "old" else "for room"),
        word("recording", "recording", lambda each: each.entry.path),
    )  # fmt: skip
