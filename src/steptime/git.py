"""Git calls in repositories that may be a stranger's: nothing that their configuration names is run.

Not run: hooks, the file system monitor, filters, diff drivers, pagers, editors, programs that sign or ask for
passwords. Nothing is fetched, and nothing is written. Variables of an enclosing Git command (a hook's GIT_DIR,
GIT_INDEX_FILE) are ignored. Files with a filter (Git LFS) are not read: `filtered` names them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""Pattern of a commit id, SHA-1 or SHA-256."""
PATIENCE = 60.0
"""Timeout for Git, s. A million files on a network file system may take longer."""
LOOK = 0.1
"""Seconds between two checks whether an answer is still wanted."""
PASSIVE = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.editor": "false",
    "core.askPass": "",
    "core.sshCommand": "false",
    "core.alternateRefsCommand": "",
    "credential.helper": "",
    "diff.external": "",
    "log.showSignature": "false",
    "gpg.program": "false",
    "submodule.recurse": "false",
}
"""Settings that override any configuration."""
KEPT = ("GIT_CONFIG_", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")
"""Prefixes of the GIT_ variables that Git receives."""
OURS = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
}
FILTER = re.compile(r"filter\..+\.(clean|smudge|process|required)", re.DOTALL)
WITHOUT_FILTER = ("unspecified", "unset")


def ask_git(
    folder: Path, *words: str, given: bytes = b"", over: Callable[[], bool] = lambda: False, topmost: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Result of a Git command in a folder. given: standard input. over: True once the answer is no longer wanted.
    topmost: folder at and above which repositories are ignored. Raises OSError if Git cannot run,
    subprocess.TimeoutExpired."""
    listed = _run(folder, ("config", "--null", "--name-only", "--list"), {}, b"", over, topmost)
    names = [name for name in listed.stdout.decode(errors="surrogateescape").split("\0") if FILTER.fullmatch(name)]
    if listed.returncode or any("=" in name or "\n" in name for name in names):  # else -c would set another one
        raise OSError(f"the configuration of the repository in {folder} cannot be used")
    silent = {name: "false" if name.endswith(".required") else "" for name in names}
    return _run(folder, words, silent, given, over, topmost)


def _run(
    folder: Path,
    words: Iterable[str],
    settings: dict[str, str],
    given: bytes,
    over: Callable[[], bool],
    topmost: Path | None,
) -> subprocess.CompletedProcess[bytes]:
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(KEPT)}
    ceiling = {"GIT_CEILING_DIRECTORIES": str(topmost)} if topmost is not None else {}
    command = ["git", "--no-pager", "--literal-pathspecs", "-C", str(folder)]
    command += [word for name, value in {**PASSIVE, **settings}.items() for word in ("-c", f"{name}={value}")]
    with tempfile.TemporaryFile() as read:  # after a timeout, `communicate` accepts no input again
        read.write(given)
        read.seek(0)
        git = subprocess.Popen(
            [*command, *words],
            stdin=read,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**theirs, **OURS, **ceiling},
            start_new_session=True,  # a Ctrl-C is meant for the job
        )
    with git:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not over():
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, message = git.communicate(timeout=LOOK)
                return subprocess.CompletedProcess(command, git.returncode, printed, message)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(git.pid, signal.SIGKILL)
    raise subprocess.TimeoutExpired(command, PATIENCE)


def filtered(folder: Path, paths: Iterable[str]) -> frozenset[str]:
    """Paths (relative to the folder) of files with a Git filter whose content differs from Git's. Raises like
    `ask_git`."""
    given = "".join(f"{path}\0" for path in paths).encode(errors="surrogateescape")
    reported = ask_git(folder, "check-attr", "-z", "--stdin", "filter", given=given)
    words = reported.stdout.decode(errors="surrogateescape").split("\0")
    return frozenset(path for path, value in zip(words[::3], words[2::3], strict=False) if value not in WITHOUT_FILTER)
