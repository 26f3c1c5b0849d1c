"""Ends all descendants of a trial's process, and removes its workspace, even if steptime is killed.

    python -I -S watchdog.py HELD COMMAND [ARGUMENT]...
    python -I -S watchdog.py

The script uses the standard library alone. It has two parts, held only by steptime, each by a pipe.

The **watchdog** starts a command in its own session, and is the parent of all its descendants: a process that has left
the session, or whose parent has ended, becomes its child (Linux's "child subreaper", since 3.4). After the command's
end it kills the rest, and ends as the command did. The end of its standard input means that steptime is gone: it kills
all at once. A line there makes it ask the command to end first. It is never stopped itself, so that stopped jobs do not
stay so.

The **janitor** reads names of folders and removes them when its standard input ends. Watchdogs also hold the other end
of that pipe (HELD), so no process runs in a folder any more when it is removed.

A process that another service starts on request (a Docker container, a batch system's job) is no descendant, and stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import NewType, NoReturn

OwnFolder = NewType("OwnFolder", Path)
"""Folder that a trial may remove: made by `steptime.trials.names.own_folder` alone."""
CHILD_SUBREAPER = 36
"""Value of PR_SET_CHILD_SUBREAPER in linux/prctl.h."""
GRACE = 5.0
"""Seconds between the request to end and the end of a command."""
PATIENCE = 20.0
"""Seconds for the kernel to end killed processes; one that waits for a device or a disk ends later."""
LOOK = 0.005
"""Seconds between two looks at the killed processes that are left."""
STREAM_ENDED, ASKED = b"", b"end\n"
STATUS_SHIFT = 128
"""Number that shells add to the signal that ended a command."""


# -- the watchdog ------------------------------------------------------------------------------------------------------


def keep(become: Callable[[], NoReturn]) -> int:
    """Runs a command in a child process, which `become` turns into the command. Returns its return code (negative for a
    signal) when all its descendants are gone."""
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, which no exec inherits
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    job = os.fork()
    if job == 0:
        os.close(woken)
        become()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})
    until, watched = inf, [0, woken]
    while (code := _reap(job)) is None and time.monotonic() < until:
        ready, _, _ = select.select(watched, [], [], None if until == inf else max(0.0, until - time.monotonic()))
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready:
            asked = os.read(0, 64) != STREAM_ENDED
            until = time.monotonic() + GRACE if asked else 0.0
            watched = [woken, 0] if asked else [woken]
            if asked:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(job, signal.SIGTERM)
                for number, began in descendants(os.getpid()):
                    send(number, began, signal.SIGCONT)  # it may be stopped, and would not hear
    return _end_all(job, code)


def _become(words: Sequence[str]) -> NoReturn:
    """Becomes the command."""
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.execv(words[0], list(words))
    finally:
        os._exit(127)


def _reap(job: int) -> int | None:
    """Collects ended processes; returns the job's return code if it is one. Raises ChildProcessError if none is
    left."""
    while True:
        number, status = os.waitpid(-1, os.WNOHANG)
        if number == job:
            return os.waitstatus_to_exitcode(status)
        if number == 0:
            return None


def _end_all(job: int, code: int | None) -> int:
    """Kills until nothing is left, because killed processes may have started others meanwhile."""
    until = time.monotonic() + PATIENCE
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            for number, began in descendants(os.getpid()):
                send(number, began, signal.SIGKILL)
            ended = _reap(job)
            code = ended if ended is not None else code
            time.sleep(LOOK)
    return -signal.SIGKILL if code is None else code


def descendants(root: int) -> list[tuple[int, str]]:
    """Returns (process ID, start time in ticks) of all descendants of a process."""
    children: dict[int, list[tuple[int, str]]] = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        words = stat_of(int(number))
        if words:
            children.setdefault(int(words[1]), []).append((int(number), words[19]))
    found, new = [], [root]
    while new:
        below = [child for parent in new for child in children.get(parent, ())]
        found += below
        new = [number for number, _ in below]
    return found


def stat_of(number: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the process's name; [] if the process is gone."""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (OSError, ValueError):
        return []


def send(number: int, began: str, what: signal.Signals) -> None:
    """Sends a signal to a process, unless its process ID belongs to another process by now."""
    with contextlib.suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(number, what)
            return
        handle = os.pidfd_open(number)
        try:
            if stat_of(number)[19:20] == [began]:
                signal.pidfd_send_signal(handle, what)
        finally:
            os.close(handle)


def end_as(code: int) -> int:
    """Ends this process by the signal that ended the command, else returns the exit status."""
    if code >= 0:
        return code
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own core file
    with contextlib.suppress(OSError, ValueError):  # of SIGKILL there is no other way
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    return STATUS_SHIFT - code


# -- the janitor -------------------------------------------------------------------------------------------------------


def sweep() -> None:
    """Reads the names of folders to remove, and removes them when no process is left that could name more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    asked = [json.loads(line) for line in sys.stdin.buffer if line.endswith(b"\n")]
    for path, whole in asked:
        if whole:
            clear(OwnFolder(Path(path)))
    for path, _ in sorted(asked, reverse=True):  # the inner ones first
        with contextlib.suppress(OSError):  # it is gone, or something else is in it
            os.rmdir(path)


def clear(folder: OwnFolder) -> None:
    """Removes a folder, whatever the modes of its subfolders."""
    for root, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):  # another's: it stays
                    os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


class Janitor:
    """Remover of a trial's folders, a process that starts with the first folder; this is our end of its pipe."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._reported = b""
        self._starting = threading.Lock()
        self._over: Callable[[], object] = bool
        self._clearing = threading.Thread(target=bool)

    def take(self, folder: OwnFolder) -> OwnFolder:
        """Registers a folder for removal at the trial's end, however that comes."""
        self._notify(folder, whole=True)
        return folder

    def take_empty(self, folder: Path) -> None:
        """Registers a folder for removal only if it is empty then."""
        self._notify(folder, whole=False)

    def clear(self, folder: OwnFolder) -> None:
        """Starts to remove a folder, after the previous one is gone. A disk can take half a second for the hundreds of
        folders of a workspace, while the next process may start."""
        self.await_cleared()
        self._clearing = threading.Thread(target=clear, args=(folder,), name="steptime-clear")
        self._clearing.start()

    def await_cleared(self) -> None:
        """Waits until the folders are gone that were to be removed so far."""
        if self._clearing.ident is not None:
            self._clearing.join()

    def _notify(self, folder: Path, *, whole: bool) -> None:
        line = json.dumps([str(folder), whole]).encode() + b"\n"
        with self._starting:
            self._reported += line
            try:
                if self._pipe is not None:
                    os.write(self._pipe, line)
                    return
            except OSError:  # somebody has ended it
                self._over()
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True, cwd="/"
            )
            assert process.stdin is not None
            self._pipe, self._over = process.stdin.fileno(), weakref.finalize(self, _end, process)
            os.write(self._pipe, self._reported)

    def held(self) -> tuple[int, ...]:
        """Returns the descriptor for watchdogs, () if there is nothing to remove."""
        return () if self._pipe is None else (self._pipe,)

    def close(self) -> None:
        """Ends the trial: returns when the folders are gone."""
        self.await_cleared()
        with self._starting:
            self._pipe, self._reported = None, b""
            self._over()


def _end(janitor: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        janitor.communicate()


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        sweep()
        return 0
    if int(arguments[0]) >= 0:
        os.set_inheritable(int(arguments[0]), False)
    return end_as(keep(partial(_become, arguments[1:])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
