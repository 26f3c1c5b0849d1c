"""The index of a folder's recordings: a SQLite file in the cache, so that a list of thousands of them is instant.

One law: nothing in it is trusted or needed. It may be deleted at any time; where it is damaged it is made anew, and
where it cannot be written the recordings are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from steptime.errors import RecordingError
from steptime.estimates import BETWEEN_RUNS
from steptime.folders import cache_folder
from steptime.history.history import Entry, History, history_of
from steptime.history.scan import Fingerprint, entry_of, find_recordings, fingerprint

VERSION = 2
"""Of the table and of what an entry says: another one, and the index is made anew."""
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


def read_history(folder: Path, *, floor: float = BETWEEN_RUNS) -> History:
    """The history of the recordings in a folder. What the index knows and did not change is not read again.

    Raises RecordingError where there is no such folder.
    """
    if not folder.is_dir():
        raise RecordingError(
            "history-no-folder", f"{folder} is no folder: name the one that recordings lie in, as steptime history runs"
        )
    found = {str(path): fingerprint(path) for path in find_recordings(folder)}
    known = _known(folder, found)
    fresh = {path: entry_of(Path(path), found[path]) for path in found if path not in known}
    if fresh or len(known) < len(found):
        _keep(folder, found, fresh)
    entries = [entry for entry in (*known.values(), *fresh.values()) if entry is not None]
    unread = sorted(path for path, entry in fresh.items() if entry is None)
    problems = tuple(f"{path} cannot be read and was left out." for path in unread)
    return history_of(str(folder), entries, problems, floor=floor)


def index_path(folder: Path) -> Path:
    """Where the index of a folder is kept."""
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return cache_folder() / "history" / f"{name}.sqlite"


def rebuild(folder: Path) -> None:
    """Forgets the index of a folder; the next reading makes it anew."""
    for end in ("", "-journal"):
        with contextlib.suppress(OSError):
            Path(f"{index_path(folder)}{end}").unlink()


def _known(folder: Path, found: dict[str, Fingerprint]) -> dict[str, Entry]:
    """What the index says of recordings that did not change. A damaged index says nothing, and goes."""
    try:
        with _opened(folder) as connection:
            rows = connection.execute("SELECT path, size, written, entry, checksum FROM recordings").fetchall()
        for path, size, written, entry, checksum in rows:
            if checksum != _checksum(path, (size, written), entry):
                raise ValueError("a row was damaged")
        return {
            path: msgspec.json.decode(entry, type=Entry)
            for path, size, written, entry, _ in rows
            if found.get(path) == (size, written)
        }
    except sqlite3.OperationalError:  # it cannot be opened, or somebody writes it for long
        return {}
    except (sqlite3.DatabaseError, msgspec.DecodeError, ValueError, TypeError, OSError, RecursionError):
        rebuild(folder)
        return {}


def _keep(folder: Path, found: dict[str, Fingerprint], fresh: dict[str, Entry | None]) -> None:
    """Writes what was read, and drops what is gone. A failure costs the time of the next reading."""
    with contextlib.suppress(sqlite3.Error, OSError), _opened(folder) as connection, connection:
        gone = [(path,) for (path,) in connection.execute("SELECT path FROM recordings") if path not in found]
        connection.executemany("DELETE FROM recordings WHERE path = ?", gone)
        rows = [_row(path, found[path], entry) for path, entry in fresh.items() if entry is not None and _fits(entry)]
        connection.executemany("INSERT OR REPLACE INTO recordings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _fits(entry: Entry) -> bool:
    """Whether neither its path nor a name in it is other than Unicode, which SQLite and JSON cannot hold: such a
    recording is read each time."""
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
    """SQLite sees no damage within a value, and JSON none within a string."""
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
