"""Recorder: folder, journal and facts of this process, opened at the first sign of training."""

from __future__ import annotations

import json
import math
import multiprocessing
import multiprocessing.util
import os
import time
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import Any

from steptime.journal import Journal, Kind, append_to
from steptime.probe.ours import pass_on

PAUSE = int(Kind.PAUSE)
MOST_THREADS = 65535
PENDING_FACTS = 256
"""Facts kept before the first sign of training, because loaders and optimizers are made earlier."""


class ThreadNumbers(dict[int, int]):
    """Small numbers, from 1, for the threads of this process, by the system's identifiers."""

    def __missing__(self, identifier: int) -> int:
        number = self[identifier] = min(len(self) + 1, MOST_THREADS)
        return number


def append_facts(path: str, facts: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Appends (kind, fields) as one JSON object per line: a killed job tears at most the last. Raises OSError.

    A field of `recording.Process` declares each kind, and which of several facts counts."""
    lines = (json.dumps({"fact": kind, **fields}, default=str).encode() + b"\n" for kind, fields in facts)
    append_to(path, b"".join(lines))


class Recorder:
    """Writer of journal and facts. Calls `failed` with a reason if the recording cannot be written."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        self.folder = ""
        self.journal = Journal()
        self._facts = ""
        self._failed = failed
        self.threads = ThreadNumbers()
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self.pauses = self.held = self._held_until = 0
        """pauses: how often the probe has held the job; held: ns in all; _held_until: end of the last one, ns."""

    def open(self, folder: str) -> None:
        """Opens the files in `folder`. Raises OSError."""
        self.folder = folder
        self._facts = os.path.join(folder, "facts.jsonl")
        self.journal.open(os.path.join(folder, "journal.bin"))
        append_facts(self._facts, self._pending)
        self._pending.clear()

    def append(self, kind: int, flags: int, number: int, start: int, end: int) -> None:
        try:
            self.journal.append(kind, flags, self.threads[get_ident()], number, start, end)
        except OSError as error:
            self._failed(f"the recording cannot be written ({error.strerror})")
            pass_on(error)

    def interval(self, kind: int, number: int, start: int, end: int) -> None:
        self.append(kind, 0, number, start, end)

    def pause(self, start: int) -> None:
        """Records the time since `start` (ns) as the probe's own: it belongs to no step."""
        end = time.perf_counter_ns()
        self.pauses += 1
        self.held += max(0, end - max(start, self._held_until))  # a pause may be in another one
        self._held_until = max(end, self._held_until)
        self.append(PAUSE, 0, 0, start, end)

    def fact(self, kind: str, /, **fields: Any) -> None:
        """Writes a fact, or keeps it until the folder is open. Raises OSError."""
        if self._facts:
            append_facts(self._facts, [(kind, fields)])
        elif len(self._pending) < PENDING_FACTS:
            self._pending.append((kind, fields))

    def note(self, text: str) -> None:
        """Writes a sentence for the report, if that is possible."""
        try:
            self.fact("note", text=text)
        except OSError as error:  # the disk is full: stderr has reported it already
            pass_on(error)

    def forget(self) -> None:
        """Detaches a forked child from the parent's files."""
        self.journal.forget()
        self.folder = self._facts = ""


def write_whole(path: str, facts: dict[str, Any]) -> None:
    """Writes a JSON file atomically. Raises OSError."""
    with open(path + ".partial", "w", encoding="utf-8") as file:
        json.dump(facts, file, default=str)
    os.replace(path + ".partial", path)


def finish_as_child(finish: Callable[[], None]) -> None:
    """Registers `finish` in children of multiprocessing, which leave by os._exit: finalizers run then, atexit does
    not."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, finish, exitpriority=100)


def json_number(value: float | None) -> float | str | None:
    """Returns a number for JSON, which has no infinities: "inf", "-inf" and "nan" represent them."""
    return value if value is None or math.isfinite(value) else str(value)
