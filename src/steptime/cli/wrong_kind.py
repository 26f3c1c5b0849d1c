"""The command that was meant, where a verb was given what another one takes: a program, a page, a trace, a snapshot."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from steptime.errors import UsageError
from steptime.launcher.command import is_recording
from steptime.trace.source import first_bytes

LOOKED_AT = 1 << 18
"""Bytes of a file that are looked at."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """Kind of a file or folder. name: words with an article. verbs: verbs that take it. meant: advice, with {} for its
    path. signs: bytes, one of which is near the start of such a file; endings: ends of its name."""

    name: str
    verbs: frozenset[str]
    meant: str
    signs: tuple[bytes, ...] = ()
    endings: tuple[str, ...] = ()


JOBS = frozenset({"run", "try", "judge", "lab", "nan"})
READERS = frozenset({"diagnose", "report", "compare"})
RECORDING = FileKind(
    "a recording",
    READERS | {"try", "judge", "lab", "watch", "memory", "history", "bench-loader", "env"},
    "Did you mean: steptime diagnose {}?",
)
KINDS = (
    FileKind("a Python program", JOBS | {"bench"}, "Did you mean: steptime run -- python {}?", endings=(".py",)),
    FileKind("a shell script", JOBS, "Did you mean: steptime run -- bash {}?", endings=(".sh",)),
    FileKind(
        "a page",
        frozenset(),
        "Open it in a browser; steptime diagnose alone shows the newest recording again.",
        (b"<!doctype html", b"<!DOCTYPE html", b"<html"),
        (".html", ".htm"),
    ),
    FileKind("a dump of the flight recorder", frozenset({"hang"}), "Did you mean: steptime hang {}?", (b"pg_config",)),
    FileKind(
        "a snapshot of memory",
        frozenset({"memory"}),
        "Did you mean: steptime memory {}?",
        (b"device_traces", b"\x8c\x08segments", b"X\x08\x00\x00\x00segments"),
    ),
    FileKind("a trace", READERS | {"memory"}, "Did you mean: steptime diagnose {}?", (b'"traceEvents"',)),
)


def wrong_kind(words: Sequence[str]) -> UsageError | None:
    """Error about the first of the words that names a file which another verb takes; None if there is none. A word
    after an option may be its value, and words after a job's first one are the job's."""
    verb, *given = words or [""]
    named = [word for before, word in pairwise(["", *given]) if not word.startswith("-")
             and (before == "--" or not before.startswith("-"))]  # fmt: skip
    for word in named[:1] if verb in JOBS else named:
        kind = kind_of(Path(word))
        if kind is not None and verb not in kind.verbs:
            meant = kind.meant.format(shlex.quote(word))
            return UsageError("wrong-kind", f"{word} is {kind.name}, which steptime {verb} does not take. {meant}")
    return None


def kind_of(path: Path) -> FileKind | None:
    """Kind of an existing file or folder, by its name and its first bytes; None for any other path."""
    try:
        if path.is_dir():
            return RECORDING if is_recording(path) else None
        if not path.is_file():
            return None
        named = next((kind for kind in KINDS if path.name.lower().endswith(kind.endings or ("\0",))), None)
        start = b"" if named else first_bytes(path, LOOKED_AT)
        return named or next((kind for kind in KINDS if any(sign in start for sign in kind.signs)), None)
    except (OSError, ValueError):
        return None
