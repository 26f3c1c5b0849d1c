"""Runs the command as a user does: in a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from machines import remember_peaks
from preloading import steptime_words
from printed import wrong_words

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def steptime(tmp_path: Path) -> Steptime:
    """steptime(*arguments): what it printed and its exit status. It works in an empty folder, and has a cache of its
    own."""
    remember_peaks(tmp_path / "cache")

    def call(*arguments: str | Path, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        finished = subprocess.run(
            steptime_words(*map(str, arguments)),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        for printed in (finished.stdout, finished.stderr):
            assert printed.startswith("{") or wrong_words(printed) == []
        return finished

    return call
