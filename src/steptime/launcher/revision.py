"""The commit that a job's folder has checked out, and whether its tracked files differ from it, as `git` itself says.

Git is asked beside the running job, never before its start. It writes nothing, runs no hook, monitor or pager, fetches
nothing, and ends when its time is up; where it refuses or is not there, nothing is known. Filters that the repository's
configuration names do run: only they can tell whether a file of theirs has changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""SHA-1, or SHA-256."""
LOOK, LOOKS = 0.1, 600
"""Seconds between two looks at whether an answer is still wanted, and how often is looked: a minute. A million files on
a network's file system may take longer."""
PATIENCE = 5.0
"""Seconds that the end of a job waits for an inspection."""
PASSIVE = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
"""Options under which Git runs no program of the repository's but filters."""
STATUS = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty", "--no-renames")
"""A line for each tracked file that differs, staged or not. Of submodules, another commit counts."""
KEPT = ("GIT_CONFIG", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")
"""How the names of those variables begin that reach Git. All its others (a hook's GIT_DIR, GIT_TRACE) are about another
command of the user's."""


@dataclass(frozen=True, slots=True)
class Revision:
    """commit: in hexadecimal; "" outside of a repository, before the first commit, and where Git does not say. dirty:
    whether tracked files differ from it; None where Git does not say."""

    commit: str = ""
    dirty: bool | None = None


class Inspection:
    """Asks for a folder's revision in a thread of its own, `delay` seconds from now, and tells it: a job that runs for
    hours has read its files when people go on to edit them."""

    def __init__(self, folder: Path, delay: float, tell: Callable[[Revision], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._telling = threading.Lock()
        self._seen: Revision | None = None
        self._now, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, args=(delay,), daemon=True)
        self._thread.start()

    def _look(self, delay: float) -> None:
        self._now.wait(delay)
        seen = revision_of(self._folder, self._over)
        with self._telling:
            if not self._over.is_set():
                self._seen = seen
                self._tell(seen)

    def end(self) -> Revision:
        """What was seen, after which nothing more is told; where the job was over before Git was asked, it is asked
        now. Unknown where it takes too long: then Git is ended."""
        self._now.set()
        self._thread.join(PATIENCE)
        with self._telling:
            self._over.set()
        self._thread.join(3 * LOOK)
        return self._seen or Revision()


def revision_of(folder: Path, over: threading.Event) -> Revision:
    """What Git says of the working tree that a folder lies in, unless `over` is set meanwhile."""
    head = _ask(folder, ("rev-parse", "--verify", "--quiet", "HEAD"), over)
    commit = head.decode("ascii", "replace").strip() if head is not None else ""
    if not COMMIT.fullmatch(commit):
        return Revision()
    changed = _ask(folder, STATUS, over)
    return Revision(commit, None if changed is None else bool(changed))


def _ask(folder: Path, words: Sequence[str], over: threading.Event) -> bytes | None:
    """What Git prints; None where it refuses, is not there, or takes too long."""
    try:
        git = subprocess.Popen(
            ("git", "-C", str(folder), *PASSIVE, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,  # a Ctrl-C is meant for the job; and Git ends together with its filters
        )
    except OSError:
        return None
    with git:
        for _ in range(LOOKS):
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, _ = git.communicate(timeout=LOOK)
                return printed if git.returncode == 0 else None
            if over.is_set():
                break
        os.killpg(git.pid, signal.SIGKILL)
    return None


def _environment() -> dict[str, str]:
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(KEPT)}
    return {**theirs, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
