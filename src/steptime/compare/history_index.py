"""The recordings of a folder: their entries in the history, an SQLite index of these, and their removal.

The index is in the cache, so that a list of thousands of recordings is instant. It is neither trusted nor needed: it
may be deleted at any time. A damaged index is rebuilt, and if it cannot be written, the recordings are read.

Removal touches only what steptime wrote. A folder counts as a recording by its manifest; in it and in its process
folders, the format's files are removed by name. Everything else stays, with its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.outliers import usual_steps
from steptime.advice.step_evidence import contention_use, step_summary
from steptime.advice.verdict import background_load
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.memory_samples import most_held
from steptime.analysis.timeline import Mode
from steptime.analysis.tracer import without_tracer
from steptime.compare.history import Entry, History, history_of
from steptime.errors import RecordingError, SteptimeError, no_such_file
from steptime.folders import cache_folder
from steptime.launcher.command import job_name
from steptime.quantities import BETWEEN_RUNS
from steptime.recording.inventory import VARIANTS, claimed
from steptime.recording.load import load_process, look_into, place
from steptime.recording.recording import Process, ProcessFacts, TelemetrySample

DEEPEST = 4
"""Levels of folders that are searched: the variants of a trial are in its `variants`."""
RUNNING = 3600.0
"""Seconds since the last write after which a recording without an end belongs to a killed job."""
LEAST_STEPS = 3
"""Fewest steady steps for a result, as in a diagnosis."""
Fingerprint = tuple[int, int]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the recordings in a folder. Links are not followed, and recordings are not searched."""
    if claimed(folder):
        yield folder
        return
    if not depth:
        return
    try:
        with os.scandir(folder) as found:
            inside = [Path(each.path) for each in found if each.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for each in inside:
        if not each.name.startswith("."):
            yield from _below(each, depth - 1)


def fingerprint(folder: Path) -> Fingerprint:
    """(bytes of a recording's files, time of the last write to any): if either changes, its entry is outdated."""
    size, newest = 0, 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                state = os.lstat(f"{parent}/{name}")
            except OSError:
                continue
            size, newest = size + state.st_size, max(newest, state.st_mtime_ns)
    return size, newest


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    """Data of a process that stay after its journal was freed. case: None with too few steps."""

    place: tuple[bool, int, int, int]
    facts: ProcessFacts
    mode: Mode
    case: Case | None
    peak_bytes: int | None


def entry_of(folder: Path, print_of: Fingerprint) -> Entry | None:
    """History entry of a recording; None if the recording cannot be read at all."""
    try:
        contents = look_into(folder)
    except SteptimeError:
        return None
    manifest, size = contents.manifest, print_of[0]
    read = (load_process(each, manifest)[0] for each in contents.folders)
    looked = sorted((_look(process, contents.telemetry) for process in read), key=lambda each: each.place)
    fresh = time.time() - print_of[1] / 1e9 < RUNNING
    facts = looked[0].facts if looked else None
    device = (facts.device_name or facts.device.partition(":")[0]) if facts is not None else ""
    entry = Entry(
        path=str(folder),
        job=job_name(manifest.command) if manifest.command else folder.name,
        command=shlex.join(manifest.command),
        commit=manifest.commit,
        dirty=manifest.dirty,
        machine=", ".join(filter(None, (manifest.host, device))),
        torch=facts.torch if facts is not None else "",
        started_epoch_ns=manifest.started_epoch_ns,
        running=manifest.ended_epoch_ns is None and fresh,
        bytes=size,
        trial=folder.parent.name == VARIANTS
        or "numerics" in manifest.options
        or any(each.facts.changes for each in looked),
    )
    return _measured(entry, looked)


def _measured(entry: Entry, looked: Sequence[_KnownProcess]) -> Entry:
    """The entry with its step: that of the slowest training process, or of the first one if they are alike."""
    trainers = [each for each in looked if each.mode != Mode.FORWARD] or looked
    found = [(each, each.case) for each in trainers if each.case is not None]
    if not found:
        return replace(entry, problem="too few steady steps for a breakdown")
    slowest = max(found, key=lambda each: each[1].step.duration.value)
    alike = max(case.step.duration.low for _, case in found) <= min(case.step.duration.high for _, case in found)
    process, case = found[0] if alike else slowest
    busy = background_load(examine(case).findings)
    return replace(
        entry,
        step=case.step.duration,
        steady=case.step.steady,
        peak_bytes=process.peak_bytes,
        busy=busy.summary if busy is not None else "",
    )


def _look(process: Process, telemetry: Sequence[TelemetrySample]) -> _KnownProcess:
    """Step of a process, and other load at the time."""
    layout = lay_out_whole(process)
    timeline, usual = layout.timeline, without_tracer(layout, usual_steps(layout))
    case = None
    if timeline.steps.steady.sum() >= LEAST_STEPS and len(usual):
        contention = contention_use(process, timeline.steps, usual, telemetry)
        case = Case(step_summary(process, timeline, usual), contention=contention)
    return _KnownProcess(place(process), process.facts, timeline.mode, case, most_held(process, timeline.steps))


VERSION = 3
"""Version of the table and of its entries; the index is rebuilt if it differs."""
PATIENCE = 5.0
"""Seconds to wait for another process that writes the index."""
_TABLE = """
CREATE TABLE recordings (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, written INTEGER NOT NULL, job TEXT NOT NULL, "commit" TEXT NOT NULL,
    machine TEXT NOT NULL, started INTEGER NOT NULL, entry BLOB,
    checksum INTEGER NOT NULL
) WITHOUT ROWID
"""
_ORDER = 'CREATE INDEX by_job ON recordings (job, machine, started, "commit")'


def read_history(folder: Path, *, noise_floor: float = BETWEEN_RUNS) -> History:
    """History of the recordings in a folder. Unchanged recordings in the index are not read again.

    Raises RecordingError if there is no such folder."""
    if not folder.exists():
        raise no_such_file(folder, "a folder of recordings, such as runs, which steptime run creates")
    if not folder.is_dir():
        raise RecordingError(
            "history-no-folder", f"{folder} is not a folder. Give the folder of your recordings: steptime history runs"
        )
    found = {str(path): fingerprint(path) for path in sorted(_below(folder, DEEPEST))}
    known = _known(folder, found)
    fresh = {path: entry_of(Path(path), found[path]) for path in found if path not in known}
    if fresh or len(known) < len(found):
        _keep(folder, found, fresh)
    entries = [entry for entry in (*known.values(), *fresh.values()) if entry is not None]
    unread = sorted(path for path, entry in fresh.items() if entry is None)
    problems = tuple(f"{path} cannot be read and was left out." for path in unread)
    return history_of(str(folder), entries, problems, noise_floor=noise_floor)


def index_path(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return cache_folder() / "history" / f"{name}.sqlite"


def rebuild(folder: Path) -> None:
    """Deletes the index of a folder, so that the next reading rebuilds it."""
    for end in ("", "-journal"):
        with contextlib.suppress(OSError):
            Path(f"{index_path(folder)}{end}").unlink()


def _known(folder: Path, found: dict[str, Fingerprint]) -> dict[str, Entry]:
    """Entries of unchanged recordings. A damaged index is deleted and yields none."""
    try:
        with _opened(folder) as connection:
            rows = connection.execute("SELECT path, size, written, entry, checksum FROM recordings").fetchall()
        for path, size, written, entry, checksum in rows:
            if checksum != _checksum(path, (size, written), entry):
                raise ValueError("a row was damaged")
        return {
            path: replace(msgspec.json.decode(entry, type=Entry), path=path)
            for path, size, written, entry, _ in rows
            if found.get(path) == (size, written)
        }
    except sqlite3.OperationalError:  # it cannot be opened, or somebody writes it for long
        return {}
    except (sqlite3.DatabaseError, msgspec.DecodeError, ValueError, TypeError, OSError, RecursionError):
        rebuild(folder)
        return {}


def _keep(folder: Path, found: dict[str, Fingerprint], fresh: dict[str, Entry | None]) -> None:
    """Writes new entries, and drops those of removed recordings. A failure only costs the time of the next reading."""
    with contextlib.suppress(sqlite3.Error, OSError), _opened(folder) as connection, connection:
        gone = [(path,) for (path,) in connection.execute("SELECT path FROM recordings") if path not in found]
        connection.executemany("DELETE FROM recordings WHERE path = ?", gone)
        rows = [_row(path, found[path], entry) for path, entry in fresh.items() if entry is not None and _fits(entry)]
        connection.executemany("INSERT OR REPLACE INTO recordings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _fits(entry: Entry) -> bool:
    """True if the entry's path and names are valid Unicode, which SQLite and JSON need; others are read each time."""
    try:
        msgspec.json.encode(entry)
    except UnicodeEncodeError:
        return False
    return True


def _row(path: str, print_of: Fingerprint, entry: Entry) -> Sequence[object]:
    text = msgspec.json.encode(entry)
    order = entry.job, entry.commit, entry.machine, entry.started_epoch_ns
    return (path, *print_of, *order, text, _checksum(path, print_of, text))


def _checksum(path: str, print_of: Fingerprint, entry: bytes) -> int:
    """Checksum of a row: SQLite detects no damage within a value, and JSON none within a string."""
    return zlib.crc32(repr((path, *print_of, entry)).encode())


@contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    path = index_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=PATIENCE)
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            with connection:
                connection.execute("DROP TABLE IF EXISTS recordings")
                connection.execute(_TABLE)
                connection.execute(_ORDER)
                connection.execute(f"PRAGMA user_version = {VERSION}")
        yield connection
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Doomed:
    """A recording to remove, and the reason."""

    entry: Entry
    why: str


def doomed_of(
    entries: Sequence[Entry], now_epoch_ns: int, *, older_than: float | None, keep_bytes: int | None
) -> tuple[Doomed, ...]:
    """Recordings to remove, the oldest first: all that are older than `older_than` seconds, then more until the others
    fit into `keep_bytes`. A recording that may still be written to stays, and its size counts."""
    kept = sorted(entries, key=lambda entry: entry.started_epoch_ns)
    doomed: list[Doomed] = []
    if older_than is not None:
        boundary = now_epoch_ns - older_than * 1e9
        doomed += [Doomed(entry, "old") for entry in kept if entry.started_epoch_ns < boundary and not entry.running]
    gone = {each.entry.path for each in doomed}
    kept = [entry for entry in kept if entry.path not in gone]
    if keep_bytes is not None:
        size = sum(entry.bytes for entry in kept)
        for entry in kept:
            if size > keep_bytes and not entry.running:
                doomed.append(Doomed(entry, "room"))
                size -= entry.bytes
    return tuple(sorted(doomed, key=lambda each: each.entry.started_epoch_ns))
