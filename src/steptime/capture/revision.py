"""The commit that a job's folder has checked out, and whether its tracked files differ from it; git is never run.

The commit takes a few small files and is read before the job starts. Whether the tree is dirty takes a look at every
tracked file, as `git status` does: that is done beside the running job. Formats: Git's documentation, index-format and
gitrepository-layout. Standard library only and few modules: this runs before the job starts.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
LARGEST_INDEX = 64 << 20
"""Bytes of an index that is read: half a million files."""
LARGEST_FILE = 16 << 20
"""Bytes of a file whose content is compared, where its times do not say whether it was changed."""
MOST_LINKS = 5
"""A symbolic reference may lead to another one; Git itself allows five."""
PATIENCE = 5.0
"""Seconds that the end of a job waits for an inspection."""
LINK, MODULE, FOLDER = 0o120000, 0o160000, 0o040000
"""Modes of symbolic links, of submodules and of folders that a sparse checkout leaves out."""
_HEADER = struct.Struct(">4sII")
_ENTRY = struct.Struct(">IIIIIIIIII20sH")
_KNOWN = 0x8000
"""Flag of an entry whose file is assumed unchanged: `git status` does not look at it either."""
_EXTENDED, _SKIPPED, _STAGE = 0x4000, 0x4000, 0x3000


@dataclass(frozen=True, slots=True)
class Repository:
    """tree: the working tree. own: its folder of Git's files; common: that of all its worktrees."""

    tree: Path
    own: Path
    common: Path


def find(folder: Path) -> Repository | None:
    """The repository that a folder lies in; None outside of one, and where its files cannot be read."""
    for tree in (folder, *folder.parents):
        own = tree / ".git"
        try:
            if own.is_file():  # a worktree, or a submodule
                own = tree / _text(own).removeprefix("gitdir:").strip()
            if own.is_dir():
                shared = own / "commondir"
                return Repository(tree, own, own / _text(shared).strip() if shared.is_file() else own)
        except (OSError, ValueError):
            return None
    return None


def commit_of(repository: Repository) -> str:
    """The commit that is checked out, in hexadecimal; "" before the first one, and where it cannot be read."""
    try:
        name = _text(repository.own / "HEAD").strip()
        for _ in range(MOST_LINKS):
            if not name.startswith("ref:"):
                break
            name = _followed(repository, name.removeprefix("ref:").strip())
    except (OSError, ValueError):
        return ""
    return name if COMMIT.fullmatch(name) else ""


def _followed(repository: Repository, reference: str) -> str:
    """What a reference says: in a file of its name, else among the packed ones."""
    if ".." in reference.split("/"):
        return ""
    for folder in (repository.own, repository.common):
        path = folder / reference
        if path.is_file():
            return _text(path).strip()
    packed = _text(repository.common / "packed-refs")
    return next((line[:40] for line in packed.splitlines() if line.endswith(f" {reference}")), "")


def is_dirty(repository: Repository) -> bool | None:
    """Whether a tracked file differs from the commit. Untracked files do not count. None where files agree with the
    index, but that may hold more than the commit (something was staged), or is of a kind that is not read here."""
    path = repository.own / "index"
    try:
        if path.stat().st_size > LARGEST_INDEX:
            return None
        data, written = path.read_bytes(), path.stat().st_mtime_ns
        return _differs(repository.tree, data, written, modes=_modes_count(repository))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, IndexError, struct.error):
        return None


class Inspection:
    """Looks in a thread of its own, `delay` seconds from now, whether a repository is dirty: a job that runs for hours
    has read its files when people go on to edit them."""

    def __init__(self, repository: Repository, delay: float) -> None:
        self._repository = repository
        self._seen = False
        self._dirty: bool | None = None
        self._timer = threading.Timer(delay, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        self._dirty, self._seen = is_dirty(self._repository), True

    def result(self) -> bool | None:
        """What it saw; where the job was over before it looked, it looks now. None where a file system hangs."""
        self._timer.cancel()
        self._timer.join(PATIENCE)
        if not self._seen and not self._timer.is_alive():
            self._look()
        return self._dirty


def _modes_count(repository: Repository) -> bool:
    """Whether the file system keeps permissions to execute."""
    return not re.search(r"^\s*filemode\s*=\s*false", _text(repository.common / "config"), re.MULTILINE | re.IGNORECASE)


def _differs(tree: Path, data: bytes, written: int, *, modes: bool) -> bool | None:
    signature, version, count = _HEADER.unpack_from(data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        return None
    position, name = _HEADER.size, b""
    root = os.fsencode(tree)
    for _ in range(count):
        fields = _ENTRY.unpack_from(data, position)
        flags, begin = fields[-1], position + _ENTRY.size
        skipped = bool(flags & _KNOWN)
        if flags & _EXTENDED and version > 2:
            skipped |= bool(int.from_bytes(data[begin : begin + 2], "big") & _SKIPPED)
            begin += 2
        name, position = _name(data, begin, position, name, version)
        if flags & _STAGE:
            return True  # a merge with conflicts
        if not skipped and _changed(root + b"/" + name, fields, written, modes=modes):
            return True
    return False if _is_committed(data, position) else None


def _name(data: bytes, begin: int, entry: int, before: bytes, version: int) -> tuple[bytes, int]:
    """The name of an entry and where the next one begins. Version 4 leaves out what it shares with the one before."""
    if version < 4:
        end = data.index(b"\0", begin)
        return data[begin:end], entry + (end - entry + 8) // 8 * 8
    cut, begin = data[begin] & 0x7F, begin + 1
    while data[begin - 1] & 0x80:
        cut, begin = (cut + 1 << 7) + (data[begin] & 0x7F), begin + 1
    end = data.index(b"\0", begin)
    return before[: len(before) - cut] + data[begin:end], end + 1


def _changed(path: bytes, fields: tuple[Any, ...], written: int, *, modes: bool) -> bool:
    """Whether a file is not what the index has: by its times and size where they say so, else by its content. modes:
    whether permission to execute counts. written: when the index was; a change at that instant may not show."""
    seconds, nanoseconds, mode, size, name = fields[2], fields[3], fields[6], fields[9], fields[10]
    if mode in (MODULE, FOLDER):
        return False
    try:
        now = os.lstat(path)
    except OSError:
        return True
    if stat.S_ISLNK(now.st_mode) != (mode == LINK):
        return True
    if modes and mode != LINK and bool(now.st_mode & 0o100) != (mode == 0o100755):
        return True
    same_time = divmod(now.st_mtime_ns, 10**9) in ((seconds, nanoseconds), (seconds, 0))
    if same_time and now.st_size & 0xFFFFFFFF == size and now.st_mtime_ns < written:
        return False
    if size and now.st_size & 0xFFFFFFFF != size:
        return True
    return now.st_size > LARGEST_FILE or _blob(path, now.st_mode) != name


def _blob(path: bytes, mode: int) -> bytes:
    """The name of a file's content in Git."""
    if stat.S_ISLNK(mode):
        content = os.readlink(path)  # noqa: PTH115
    else:
        with open(path, "rb") as file:  # noqa: PTH123
            content = file.read()
    import hashlib  # loads OpenSSL, which few trees need

    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()


def _is_committed(data: bytes, position: int) -> bool:
    """Whether the index is sure to hold what a commit does: it remembers the tree that it stands for, which a commit or
    a checkout writes and staging a file invalidates."""
    end = len(data) - 20
    while position + 8 <= end:
        kind, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "big")
        if kind == b"link":
            return False  # only half of an index
        if kind == b"TREE":
            return not data[position + 8 :].startswith(b"\0-1 ")  # the root's name, empty, and its number of entries
        position += 8 + size
    return False


def _text(path: Path) -> str:
    if path.is_fifo():  # it would hold the job up, which waits for the commit
        raise OSError(f"{path} is a pipe")
    with path.open("rb") as file:
        return file.read(1 << 20).decode("utf-8", "replace")
