"""Runs a command that can read everything and write to a few folders only: the kernel's Landlock, which needs neither
privilege nor namespaces.

    python -I -S landlock.py SPEC COMMAND [ARGUMENT]...

A script of its own, in a process of its own, which becomes the command; what the command starts is held by the same
rules. Not covered: times, modes and owners of files.

SPEC is the path of a JSON document: {"writable": [PATH, ...]}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

OLDEST = 2
"""Version of Landlock: the first one lets no file move from one folder to another."""
CREATE, ADD, RESTRICT = 444, 445, 446
"""System calls, the same on all machines."""
NO_NEW_PRIVILEGES = 38
WRITE_FILE, TRUNCATE, REFER = 1 << 1, 1 << 14, 1 << 13
ENTRIES = sum(1 << bit for bit in range(4, 13))
"""Removing and making files, folders, links, sockets, pipes and devices."""
TRUNCATE_SINCE = 3
FAILED, NOT_EXECUTABLE = 125, 126


class _Handled(ctypes.Structure):
    _fields_ = [("access", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def version() -> int:
    """Of this kernel; 0 where it has none."""
    return max(0, int(_LIBRARY.syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def restrict(writable: Sequence[str]) -> None:
    """Holds this process, and all that it starts, to writing below these folders. Raises OSError."""
    file_access = WRITE_FILE | (TRUNCATE if version() >= TRUNCATE_SINCE else 0)
    access = file_access | ENTRIES | REFER
    handled = _Handled(access)
    rules = _checked(_LIBRARY.syscall(CREATE, ctypes.byref(handled), ctypes.c_size_t(8), ctypes.c_uint32(0)))
    for path in writable:
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = _Beneath(access if os.path.isdir(path) else file_access, folder)
            _checked(_LIBRARY.syscall(ADD, rules, 1, ctypes.byref(allowed), ctypes.c_uint32(0)))
            os.close(folder)
    _checked(_LIBRARY.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(_LIBRARY.syscall(RESTRICT, rules, ctypes.c_uint32(0)))
    os.close(rules)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "Landlock")
    return result


def main(arguments: Sequence[str]) -> int:
    """Does not return where the command starts."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry)
        environment = {name: value for name, _, value in pairs}
    with open(arguments[0], encoding="utf-8") as file:
        writable = json.load(file)["writable"]
    try:
        restrict(writable)
    except OSError as error:
        sys.stderr.write(f"steptime: this process of a trial cannot be contained: {error}\n")
        return FAILED
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # an interpreter ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(arguments[1], list(arguments[1:]), environment)
    except OSError as error:
        sys.stderr.write(f"steptime: {arguments[1]} cannot be executed: {error.strerror}\n")
    return NOT_EXECUTABLE


_LIBRARY: Any = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
