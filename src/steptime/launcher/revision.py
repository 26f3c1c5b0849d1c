"""The commit that a job's folder has checked out, and whether its tracked files differ from it, as `git` itself says.

Git is asked next to the running job, never before its start, and runs nothing that the repository names (`git`). It
ends when its time is up; where it refuses or is not there, nothing is known, nor whether a file with a filter has
changed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steptime import git
from steptime.git import COMMIT, ask_git, filtered

PATIENCE = 5.0
"""Seconds that the end of a job waits for an inspection."""
STATUS = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=dirty", "--no-renames")
"""An entry for each tracked file that differs, staged or not. In submodules, another commit counts."""


@dataclass(frozen=True, slots=True)
class Revision:
    """commit: in hexadecimal; "" outside of a repository, before the first commit, and where Git does not say. dirty:
    whether tracked files differ from it; None where Git does not say."""

    commit: str = ""
    dirty: bool | None = None


class Inspection:
    """Asks for a folder's revision in a thread of its own, `delay` seconds from now, and tells it: a job that runs for
    hours has read its files when people go on to edit them."""

    def __init__(self, folder: Path, delay: float, notify: Callable[[Revision], None]) -> None:
        self._folder = folder
        self._notify = notify
        self._reporter = threading.Lock()
        self._seen: Revision | None = None
        self._now, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, args=(delay,), daemon=True)
        self._thread.start()

    def _look(self, delay: float) -> None:
        self._now.wait(delay)
        seen = revision_of(self._folder, self._over)
        with self._reporter:
            if not self._over.is_set():
                self._seen = seen
                self._notify(seen)

    def end(self) -> Revision:
        """The result, which ends the watch; where the job was over before Git was asked, it is asked now. Unknown where
        it takes too long: then Git is ended."""
        self._now.set()
        self._thread.join(PATIENCE)
        with self._reporter:
            self._over.set()
        self._thread.join(3 * git.LOOK)
        return self._seen or Revision()


def revision_of(folder: Path, over: threading.Event) -> Revision:
    """Git's answer about the working tree that a folder lies in, unless `over` is set meanwhile."""
    head = _ask(folder, ("rev-parse", "--verify", "--quiet", "HEAD"), over)
    commit = head.decode("ascii", "replace").strip() if head is not None else ""
    if not COMMIT.fullmatch(commit):
        return Revision()
    changed = _ask(folder, STATUS, over)
    if not changed:
        return Revision(commit, None if changed is None else False)
    paths = [entry[3:] for entry in changed.decode(errors="surrogateescape").split("\0") if entry]
    try:
        return Revision(commit, True if set(paths) - filtered(_root(folder, over), paths) else None)
    except (OSError, subprocess.TimeoutExpired):
        return Revision(commit)


def _root(folder: Path, over: threading.Event) -> Path:
    """Root of the working tree, from which paths are given."""
    root = _ask(folder, ("rev-parse", "--show-toplevel"), over) or b""
    return Path(os.fsdecode(root.rstrip(b"\n")))


def _ask(folder: Path, words: Sequence[str], over: threading.Event) -> bytes | None:
    """Output of Git; None where it refuses, is not there, or takes too long."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        reported = ask_git(folder, *words, over=over.is_set)
        return reported.stdout if reported.returncode == 0 else None
    return None
