"""What a process of a trial must do otherwise because it cannot write to the user's files (launcher/contain).

A large file that is mapped into memory to be written is copied by an overlay, and may not be opened so by Landlock: it
is mapped copy-on-write. An overlay does not rename a folder of the user's: it is copied and removed, as `mv` does
between file systems. Neither holds for programs without torch.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch

LARGE = 32 << 20
"""Bytes from which on a file that was there before is mapped copy-on-write; a smaller one is copied in no time."""
WRITING = ("r+", "readwrite")


def install(plan: dict[str, Any]) -> None:
    """In force from the import of torch on."""
    private = functools.partial(is_large_and_old, began=int(plan.get("began_epoch_ns") or 0))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.memmap.__new__ = staticmethod(_mapping(numpy.memmap.__new__, private))
    torch.from_file = _from_file(torch.from_file, private)
    if plan["contained"] == "overlay":
        os.rename = _renaming(os.rename)
        os.replace = _renaming(os.replace)


def is_large_and_old(path: Any, began: int) -> bool:
    """Whether it is a large file that this trial has not written."""
    try:
        known = os.stat(path) if isinstance(path, str | bytes | os.PathLike) else None
    except (OSError, ValueError):
        return False
    return known is not None and known.st_size >= LARGE and known.st_ctime_ns < began


def _mapping(original: Callable[..., Any], private: Callable[[Any], bool]) -> Callable[..., Any]:
    """numpy.memmap's constructor, whose third argument is the mode."""

    @functools.wraps(original)
    def new(kind: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        mode = args[1] if len(args) > 1 else kwargs.get("mode", WRITING[0])
        if mode in WRITING and private(filename):
            if len(args) > 1:
                args = (args[0], "c", *args[2:])
            else:
                kwargs["mode"] = "c"
        return original(kind, filename, *args, **kwargs)

    return new


def _from_file(original: Callable[..., Any], private: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_file(filename: Any, shared: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(filename, False if shared and private(filename) else shared, *args, **kwargs)

    return from_file


def _renaming(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def rename(src: Any, dst: Any, **kwargs: Any) -> None:
        try:
            original(src, dst, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or kwargs or os.path.islink(src) or not os.path.isdir(src):
                raise
            partial = f"{os.fsdecode(dst)}.{os.getpid()}.partial"
            shutil.copytree(src, partial, symlinks=True)
            original(partial, dst)
            shutil.rmtree(src)

    return rename
