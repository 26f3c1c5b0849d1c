"""Commit of a job's folder, and whether its tracked files differ from it, according to `git`.

Git runs next to the job, never before its start, and runs nothing that the repository names (`git`). It is ended after
a time limit. If it refuses or is missing, or only files with a filter differ, the answer is unknown.
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
"""Command with an entry for each tracked file that differs, staged or not. In submodules, another commit counts."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Revision of a folder. commit: hexadecimal; "" outside of a repository, before the first commit, or if unknown.
    dirty: True if tracked files differ from the commit; None if unknown."""

    commit: str = ""
    dirty: bool | None = None


class Inspection:
    """Thread that reads a folder's revision after `delay` seconds and passes it to `notify`. By then the job has read
    its files, and later edits do not count."""

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
        """Returns the result and ends the thread; asks Git now if it was not asked yet. Unknown after a time limit,
        when Git is ended."""
        self._now.set()
        self._thread.join(PATIENCE)
        with self._reporter:
            self._over.set()
        self._thread.join(3 * git.LOOK)
        return self._seen or Revision()


def revision_of(folder: Path, over: threading.Event) -> Revision:
    """Returns Git's answer about the folder's working tree, unless `over` is set meanwhile."""
    head = _ask(folder, ("rev-parse", "--verify", "--quiet", "HEAD"), over)
    commit = head.decode("ascii", "replace").strip() if head is not None else ""
    if not COMMIT.fullmatch(commit):
        return Revision()
    changed = _ask(folder, STATUS, over)
    if not changed:
        return Revision(commit, None if changed is None else False)
    paths = [entry[3:] for entry in changed.decode(errors="surrogateescape").split("\0") if entry]
    root = _ask(folder, ("rev-parse", "--show-toplevel"), over) or b""  # to which the paths are relative
    try:
        return Revision(commit, True if set(paths) - filtered(Path(os.fsdecode(root.rstrip(b"\n"))), paths) else None)
    except (OSError, subprocess.TimeoutExpired):
        return Revision(commit)


def _ask(folder: Path, words: Sequence[str], over: threading.Event) -> bytes | None:
    """Returns Git's output; None if it refuses, is missing, or takes too long."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        reported = ask_git(folder, *words, over=over.is_set)
        return reported.stdout if reported.returncode == 0 else None
    return None
