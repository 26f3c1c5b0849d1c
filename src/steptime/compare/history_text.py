"""The history in a terminal and as JSON."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from steptime.compare.compare import level_text
from steptime.compare.history import Entry, History, JobHistory, slowed
from steptime.compare.history_index import Doomed
from steptime.quantities import Jump, format_bytes, format_count, format_duration, format_share
from steptime.report.printable import one_line, printable

COLUMNS = 80
_BAR = 12
_NEWEST = 6
"""Recordings of a job that are listed where nobody asked for all."""
_MOST_JOBS = 8


def render_text(history: History, *, everything: bool = False) -> str:
    """The whole text. everything: all recordings of all jobs."""
    entries = history.entries
    jobs = len(history.tracks)
    size = format_bytes(sum(entry.bytes for entry in entries))
    lines = [f"{format_count(len(entries), 'recording')} of {format_count(jobs, 'job')} in {history.folder}, {size}"]
    displayed = history.tracks if everything else history.tracks[:_MOST_JOBS]
    for track in displayed:
        lines += ["", *_track(track, everything=everything)]
    if len(history.tracks) > len(displayed):
        lines += ["", f"{jobs - len(displayed)} more jobs: steptime history {history.folder} --all"]
    if history.variants:
        lines += [
            "",
            f"{format_count(len(history.variants), 'recording')} of trials or of steptime nan, in no trend",
        ]
    lines += [one_line(problem) for problem in history.problems]
    command = next_command(history)
    lines += ["", f"Next:  {command}"] if command else []
    return "".join(f"{printable(line)}\n" for line in lines)


def _track(track: JobHistory, *, everything: bool) -> list[str]:
    title = one_line(f"{track.job} on {track.machine}")
    count = format_count(len(track.entries), "recording")
    lines = [f"{title:<{COLUMNS - len(count) - 1}} {count}"]
    displayed = track.entries if everything else track.entries[-_NEWEST:]
    longest = max((entry.step.value for entry in displayed if entry.step is not None), default=0.0)
    lines += [_row(entry, longest) for entry in displayed]
    if len(displayed) < len(track.entries):
        lines.append(f"  ({len(track.entries) - len(displayed)} older ones: --all)")
    return [*lines, f"  {one_line(sentence_of(track))}"]


def _row(entry: Entry, longest: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.started_epoch_ns / 1e9))
    mark = "+" if entry.commit and entry.dirty else " "
    head = f"  {when}  {entry.commit[:8] + mark:<10}"
    if entry.step is None:
        reported = "still running" if entry.running else entry.problem
        return f"{head}{reported:<24}  {Path(entry.path).name}"
    filled = round(_BAR * entry.step.value / longest) if longest else 0
    spread = format_duration((entry.step.high - entry.step.low) / 2)
    load = " beside load" if entry.busy else ""
    step = f"{format_duration(entry.step.value):>8} ± {spread}"
    return f"{head}{'█' * filled:<{_BAR}} {step:<19}{Path(entry.path).name}{load}"


def sentence_of(track: JobHistory) -> str:
    """Since when it has been slow, or that it keeps its level."""
    if len(track.reported) < 2:
        return "One measured recording has no trend." if track.reported else "No recording of it has a step."
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
    return f"{reported} Other programs ran beside {busy} of them, which may be why." if busy else reported


def _change(jump: Jump) -> str:
    word = "longer" if jump.after > jump.before else "shorter"
    share = format_share(abs(jump.after / jump.before - 1))
    caveat = "" if jump.confirmed else " (the next run will confirm it or not)"
    return f"{format_duration(jump.before)} to {format_duration(jump.after)}, {share} {word}{caveat}"


def _since(track: JobHistory, jump: Jump) -> str:
    """What else changed with it."""
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
    """What tells most: the comparison around the newest change for the worse; "" where there is nothing to compare."""
    for track in history.tracks:
        jump = slowed(track)
        if jump is not None:
            paths = (track.reported[jump.at - 1].path, track.reported[jump.at].path)
            return f"steptime compare {' '.join(map(shlex.quote, paths))}"
    for track in history.tracks:
        if len(track.reported) > 1:
            return f"steptime compare {' '.join(shlex.quote(entry.path) for entry in track.reported[-2:])}"
    return ""


def render_doomed(doomed: Sequence[Doomed], *, done: bool) -> str:
    """What is to go, or is gone."""
    size = format_bytes(sum(each.entry.bytes for each in doomed))
    head = "Removed" if done else "Would remove"
    lines = [f"{head} {format_count(len(doomed), 'recording')}, {size}"]
    for each in doomed:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.entry.started_epoch_ns / 1e9))
        why = "too old" if each.why == "old" else "for room"
        lines.append(f"  {when}  {format_bytes(each.entry.bytes):>9}  {why}  {one_line(each.entry.path)}")
    if doomed and not done:
        lines.append("Nothing was removed: add --yes to do it.")
    return "".join(f"{printable(line)}\n" for line in lines)
