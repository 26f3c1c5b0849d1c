"""Files that an arm writes: what is a link in its private copy of the job's folder becomes a file of its own first, and
what lies outside is told.

Told once each, as notes of the recording that begin with OUTSIDE; temporary files, caches and devices do not count.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

OUTSIDE = "writes outside of its folder: "
MOST = 5
"""Files that are told."""
MOST_LINKS = 5000
"""Of one folder; one with more entries is a data set."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
HARMLESS = ("/dev", "/proc", "/sys", "/run", "~/.cache", "~/.config", "~/.triton", "~/.nv", "~/.local/share")


class OutsideWrites:
    """Listens to what the interpreter opens, from the import of torch on. note: where a sentence goes."""

    def __init__(self, recording: str, note: Callable[[str], None]) -> None:
        self._copy = PrivateCopy(recording)
        harmless = [os.path.expanduser(path) for path in HARMLESS]
        places = [os.getcwd(), recording, tempfile.gettempdir(), *harmless]
        self._inside = tuple(os.path.realpath(place) + os.sep for place in places)
        self._note = note
        self._said: set[str] = set()
        self._pid = os.getpid()

    def install(self) -> None:
        """An audit hook, which cannot be taken out again, and torch.save, whose C++ part opens files by itself."""
        sys.addaudithook(self._heard)
        original = torch.save

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            self._wrote(f, keeps=False)
            return original(obj, f, *args, **kwargs)

        torch.save = save

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or len(arguments) != 3:  # anybody may raise an event of that name
            return
        path, mode, flags = arguments
        if any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & WRITING:
            self._wrote(path, keeps="w" not in mode if isinstance(mode, str) else not flags & os.O_TRUNC)

    def _wrote(self, path: Any, *, keeps: bool) -> None:
        """keeps: whether what is in the file may be read, or written behind."""
        if isinstance(path, str | bytes | os.PathLike):
            with contextlib.suppress(Exception):  # the probe's border: the link stays, and what is behind it is told
                self._copy.take(os.fsdecode(path), keeps=keeps)
            with contextlib.suppress(Exception):  # the same: an error in an audit hook would be the user's
                self._tell(os.fsdecode(path))

    def _tell(self, path: str) -> None:
        if len(self._said) >= MOST or os.getpid() != self._pid:
            return
        place = os.path.realpath(path)
        if (place + os.sep).startswith(self._inside) or place in self._said or len(self._said) >= MOST:
            return
        self._said.add(place)
        self._note(OUTSIDE + place)


class PrivateCopy:
    """The copy of the job's folder in which an arm runs (trials/working_copy), if it runs in one. What the job did not
    write while it was recorded is a link to the user's own there; it may write it all the same, as with a checkpoint
    every thousand steps."""

    def __init__(self, recording: str) -> None:
        arms, name = os.path.split(os.path.realpath(recording))
        self._root = os.path.join(os.path.dirname(arms), "copies", name) + os.sep

    def take(self, path: str, *, keeps: bool) -> None:
        """Makes a file of its own of a path that is about to be written to, if links lead out of the copy to it. Raises
        OSError where that cannot be done: then it is written where the link leads."""
        place = os.path.join(os.path.realpath(os.getcwd()), path)
        if not os.path.normpath(place).startswith(self._root):
            return
        inside = os.path.normpath(place).removeprefix(self._root).split(os.sep)
        folder = self._root
        for name in inside[:-1]:
            folder = os.path.join(folder, name)
            if os.path.islink(folder) and os.path.isdir(folder):
                _unfold(folder)
        file = os.path.join(folder, inside[-1])
        if os.path.islink(file) and not os.path.isdir(file):
            partial = f"{file}.{os.getpid()}.partial"
            if keeps and os.path.exists(file):
                shutil.copyfile(file, partial)
                os.replace(partial, file)
            else:
                os.unlink(file)


def _unfold(link: str) -> None:
    """A folder of links in the place of a link to a folder. Raises OSError."""
    target, partial = os.path.realpath(link), f"{link}.{os.getpid()}.partial"
    names = os.listdir(target)
    if len(names) > MOST_LINKS:
        raise OSError("a data set: its files are not linked one by one")
    os.mkdir(partial)
    for name in names:
        os.symlink(os.path.join(target, name), os.path.join(partial, name))
    os.unlink(link)
    os.rename(partial, link)
