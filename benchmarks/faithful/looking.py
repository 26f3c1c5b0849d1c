"""Jobs that look at themselves, bare and watched: what they saw, and how they end. Tests and the benchmark share it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OBSERVED = Path(__file__).parents[2] / "tests/launcher/observed"
"""Folder of the jobs: observed_job.py prints what it sees of itself, endings.py ends as its first word says."""
LAUNCHER = """
import sys
from pathlib import Path
from steptime.launcher.launch import ProbeOptions, exit_as, launch
exit_as(launch(sys.argv[2:], Path(sys.argv[1]), ProbeOptions()))
"""
TORCH_ENDINGS = ("forward", "SIGTERM")
"""How a training job ends: by an error in its forward, by a signal."""


def _run(words: Sequence[str], folder: Path, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "users"), **settings}
    return subprocess.run(words, input=b"two\nlines", capture_output=True, cwd=folder, env=environment, check=False)


def bare(words: Sequence[str], folder: Path, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """The job by itself. settings: of its environment."""
    return _run(words, folder, **settings)


def watched(words: Sequence[str], folder: Path, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """The job under steptime."""
    return _run([sys.executable, "-I", "-c", LAUNCHER, str(folder / "recording"), *words], folder, **settings)


def properties(finished: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """What a job has seen, by name."""
    assert finished.returncode == 0, finished.stderr.decode()
    first, *rest = finished.stdout.decode().splitlines()
    return {**json.loads(first), "after the end": rest, "stderr": finished.stderr.decode()}


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both values of each property in which they differ."""
    return {name: (one.get(name), other.get(name)) for name in one | other if one.get(name) != other.get(name)}
