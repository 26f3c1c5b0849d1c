"""Record of the files that steptime has written for this user, by digest: these may be overwritten or continued without
asking.

The digests are in the cache. If they are lost, steptime's files count as somebody else's."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from steptime.folders import cache_folder

NAME = "written"
LENGTH = 64
"""Characters of a SHA-256 digest."""
MOST, KEPT = 4096, 2048
"""Most digests in the file, and the number of newest ones that remain once it is full."""


def remember(content: bytes) -> None:
    """Records that steptime wrote these bytes. Does nothing without a cache."""
    path = cache_folder() / NAME
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        line = f"{_digest(content)}\n".encode()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, line)
            full = os.fstat(file).st_size > MOST * (LENGTH + 1)
        finally:
            os.close(file)
        if full:
            partial = path.with_name(f"{NAME}.{os.getpid()}.partial")
            partial.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[-KEPT:]))
            partial.replace(path)


def is_ours(content: bytes) -> bool:
    """True if steptime wrote exactly these bytes."""
    try:
        return _digest(content).encode() in (cache_folder() / NAME).read_bytes().split()
    except OSError:
        return False


def is_our_file(path: Path) -> bool:
    """True if steptime wrote this file, and it is no link."""
    try:
        return path.is_file() and not path.is_symlink() and is_ours(path.read_bytes())
    except OSError:
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
