"""Commands of steptime as a user starts them, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

STEPTIME = (sys.executable, "-c", "from steptime.cli.main import entry; entry()")
"""What the installed program does, in this interpreter."""


class JobFailed(Exception):
    """A job does not run here, by itself or under a tool; says what it said last."""


def steptime(
    *words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None, seconds: float | None = None
) -> str:
    """What a command prints. folder: its working folder; environment: variables in place of ours; seconds: that it may
    take at most. Raises JobFailed."""
    variables = dict(environment if environment is not None else os.environ)
    try:
        done = subprocess.run(
            [*STEPTIME, *words], cwd=folder, env=variables, timeout=seconds, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise JobFailed(f"steptime {words[0]} took more than {seconds:.0f} s") from None
    if done.returncode:
        raise JobFailed(last_words(done.stderr) or f"steptime {words[0]} ended with {done.returncode}")
    return done.stdout


def last_words(printed: str) -> str:
    """The last line that says something; torchrun ends with a rule of equals signs."""
    return next((line for line in reversed(printed.splitlines()) if any(map(str.isalpha, line))), "")
