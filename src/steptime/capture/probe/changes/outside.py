"""Files that an arm writes outside of its working folder, which a private copy of that folder does not contain.

Told once each, as notes of the recording that begin with OUTSIDE; temporary files, caches and devices do not count.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

OUTSIDE = "writes outside of its folder: "
MOST = 5
"""Files that are told."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
HARMLESS = ("/dev", "/proc", "/sys", "/run", "~/.cache", "~/.config", "~/.triton", "~/.nv", "~/.local/share")


class OutsideWrites:
    """Listens to what the interpreter opens, from the import of torch on. note: where a sentence goes."""

    def __init__(self, recording: str, note: Callable[[str], None]) -> None:
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
            self._wrote(f)
            return original(obj, f, *args, **kwargs)

        torch.save = save

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or len(arguments) != 3:  # anybody may raise an event of that name
            return
        path, mode, flags = arguments
        if any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & WRITING:
            self._wrote(path)

    def _wrote(self, path: Any) -> None:
        try:
            self._tell(path)
        except Exception:  # noqa: BLE001 - the probe's border: an error in an audit hook would be the user's
            return

    def _tell(self, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or len(self._said) >= MOST or os.getpid() != self._pid:
            return
        place = os.path.realpath(os.fsdecode(path))
        if (place + os.sep).startswith(self._inside) or place in self._said or len(self._said) >= MOST:
            return
        self._said.add(place)
        self._note(OUTSIDE + place)
