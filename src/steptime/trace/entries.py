"""Entries of the cache folder: their identity, writing, and total size.

An entry counts only for the very file that it was made from, by this version and this user. It is written whole or not
at all; whatever goes wrong with it, the file itself is read instead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from steptime._version import __version__
from steptime.folders import cache_folder

OF_COLUMNS, OF_ANSWER = ".columns", ".answer"
"""Suffixes of an entry's name: a trace's columns, and a saved answer about it."""
READER = f"{__version__}/5"
"""Version of the reader, incremented when the same file would be read into other columns."""
LARGEST_FOLDER = 5 * 10**9
"""Most bytes of all entries; they also take at most a tenth of the available space."""
QUIET_NS = 2 * 10**9
"""Age of a file's last change for a reliable stamp, ns: file systems' clocks may be too coarse to show the next one."""
ABANDONED_NS = 3600 * 10**9
Content = TypeVar("Content")
ENDS = 1 << 16
"""Bytes at a file's start and end that belong to its identity."""


class EntryError(Exception):
    """Error for a cache entry that is foreign, damaged or of another file, or data that cannot be written into one."""


class Stamp(msgspec.Struct, frozen=True):
    """Identity of a trace's file when it was read: a file with any difference is another one."""

    reader: str
    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    ends: str

    def settled(self, started: int) -> bool:
        """True if the file was unchanged for long enough before `started` (time.time_ns()), when reading began."""
        return max(self.modified_ns, self.changed_ns) < started - QUIET_NS


def stamp_of(path: Path) -> Stamp | None:
    """Identity of a file; None for a pipe or an unreadable file, since its reader reports the problem better."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            head = file.read(ENDS)
            file.seek(max(0, status.st_size - ENDS))
            tail = file.read(ENDS)
    except OSError:
        return None
    ends = hashlib.blake2b(head + tail, digest_size=16).hexdigest()
    where = (status.st_dev, status.st_ino, status.st_size)
    return Stamp(READER, str(path.absolute()), *where, status.st_mtime_ns, status.st_ctime_ns, ends)


def entry_of(stamp: Stamp, suffix: str, about: str = "") -> Path:
    """Path of the cache entry for a file. A newer version of the file has the same path, so its entry replaces the old
    one. about: further part of the entry's key."""
    digest = hashlib.sha256(os.fsencode(stamp.path) + (b"\0" + os.fsencode(about) if about else b"")).hexdigest()[:32]
    return cache_folder() / "traces" / f"{digest}{suffix}"


def read_entry(entry: Path, read: Callable[[BinaryIO], Content]) -> Content | None:
    """Content of a cache entry, as `read` returns it; None if there is no entry, if it belongs to another user, or if
    `read` raises EntryError."""
    try:
        with entry.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            found = read(file)
        os.utime(entry)  # the oldest are deleted first
    except (OSError, EntryError):
        return None
    return found


def write_entry(entry: Path, size: int, write: Callable[[BinaryIO], object]) -> None:
    """Writes a cache entry of `size` bytes, whole or not at all. Writes nothing if the disk is full, the folder is not
    writable or the data cannot be encoded."""
    partial = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not make_room(entry.parent, size, keep=entry):
            return
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            write(file)
        partial.replace(entry)
    except (OSError, EntryError):
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def make_room(folder: Path, needed: int, *, keep: Path | None = None) -> bool:
    """Deletes the least recently used cache entries until `needed` bytes fit; False if they still do not. keep: entry
    that is about to be replaced, whose size does not count. Raises OSError."""
    entries = []
    for file in folder.iterdir():
        with suppress(OSError):  # another process deleted it just now
            status = file.stat()
            if file.suffix in (OF_COLUMNS, OF_ANSWER) and file != keep:
                entries.append((status.st_mtime_ns, status.st_size, file))
            elif file.suffix == ".partial" and time.time_ns() - status.st_mtime_ns > ABANDONED_NS:
                file.unlink(missing_ok=True)  # of a process that was killed while writing
    held = sum(size for _, size, _ in entries)
    limit = min(LARGEST_FOLDER, (shutil.disk_usage(folder).free + held) // 10)
    if needed > limit:
        return False
    for _, size, file in sorted(entries):
        if held + needed <= limit:
            break
        file.unlink(missing_ok=True)
        held -= size
    return True
