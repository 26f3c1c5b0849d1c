"""The second look at a large trace: its columns as they were read, in the user's cache folder.

One law: the cache never changes what is seen. An entry counts only for the very file that it was made from, by this
version, by this user, and when everything in it is as it must be; whatever else happens, the file is read anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from steptime._version import __version__
from steptime.folders import cache_folder
from steptime.kineto.container import ContainerError, Stamp, load, store
from steptime.kineto.reader import DEFAULT_MAX_SIZE, read
from steptime.kineto.table import Trace

READER = f"{__version__}/2"
"""Grows when the same file would be read into other columns."""
LEAST_SIZE = 16 * 10**6
"""Bytes of JSON that are read in 50 ms. Below, opening an entry gains nothing that could be felt."""
LARGEST_FOLDER = 5 * 10**9
"""Bytes of all entries; and never more than a tenth of the room that there is."""
QUIET_NS = 2 * 10**9
"""A file that was changed less than this before it was read may change again without a new time: coarse clocks of file
systems tick up to every two seconds."""
ABANDONED_NS = 3600 * 10**9
ENDS = 1 << 16
"""Bytes at a file's begin and end that must be the same, too."""
SUFFIX = ".columns"


def read_remembered(path: Path, *, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True) -> Trace:
    """As `read`, from the cache where it holds this file; remembers a large one. Raises TraceError as `read` does."""
    stamp = _stamp(path) if cache else None
    if stamp is None:
        return read(path, max_size=max_size)
    entry = entry_of(stamp)
    trace = _recall(entry, stamp)
    if trace is not None and trace.size <= max_size:
        return dataclasses.replace(trace, path=path)
    started = time.time_ns()
    trace = read(path, max_size=max_size)
    settled = max(stamp.modified_ns, stamp.changed_ns) < started - QUIET_NS
    if trace.size >= LEAST_SIZE and settled and _stamp(path) == stamp:
        _remember(trace, stamp, entry)
    return trace


def entry_of(stamp: Stamp) -> Path:
    """The cache's file for a trace: one for each path, so that a new version of a trace replaces the old one."""
    digest = hashlib.sha256(os.fsencode(stamp.path)).hexdigest()[:32]
    return cache_folder() / "traces" / f"{digest}{SUFFIX}"


def _stamp(path: Path) -> Stamp | None:
    """What tells a file from any other; None for one that cannot be read, which `read` says better."""
    try:
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


def _recall(entry: Path, stamp: Stamp) -> Trace | None:
    try:
        with entry.open("rb") as file:
            if not _is_own(file):
                return None
            trace = load(file, stamp)
        os.utime(entry)  # the oldest are deleted first
    except (OSError, ContainerError):
        return None
    return trace


def _is_own(file: BinaryIO) -> bool:
    """Whether this user wrote it: what others put there is not trusted."""
    return os.fstat(file.fileno()).st_uid == os.getuid()


def _remember(trace: Trace, stamp: Stamp, entry: Path) -> None:
    """Writes an entry whole or not at all. A full disk, or a folder that cannot be written to, is no reason to fail."""
    partial = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not make_room(entry.parent, _bytes_of(trace), keep=entry):
            return
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            store(file, trace, stamp)
        partial.replace(entry)
    except (OSError, ContainerError):
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _bytes_of(trace: Trace) -> int:
    columns = (getattr(trace.events, field.name) for field in dataclasses.fields(trace.events))
    return sum(column.nbytes for column in columns if column.strides != (0,))


def make_room(folder: Path, needed: int, *, keep: Path | None = None) -> bool:
    """Deletes the entries that were not used for the longest time until there is room; False where there is none.

    keep: an entry that is about to be replaced, which does not count. Raises OSError.
    """
    entries = sorted((_age_and_size(file), file) for file in folder.glob(f"*{SUFFIX}") if file != keep)
    held = sum(size for (_, size), _ in entries)
    limit = min(LARGEST_FOLDER, (shutil.disk_usage(folder).free + held) // 10)
    for partial in _abandoned(folder):
        partial.unlink(missing_ok=True)
    if needed > limit:
        return False
    for (_, size), file in entries:
        if held + needed <= limit:
            break
        file.unlink(missing_ok=True)
        held -= size
    return True


def _abandoned(folder: Path) -> Iterator[Path]:
    """What a process that was killed while writing left behind."""
    now = time.time_ns()
    for file in folder.glob("*.partial"):
        with suppress(OSError):
            if now - file.stat().st_mtime_ns > ABANDONED_NS:
                yield file


def _age_and_size(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:  # another process deleted it just now
        return 0, 0
    return status.st_mtime_ns, status.st_size
