"""What every rival has: an adapter, and what its words may mean."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clinic.cases import JOBS, Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.truth import TIMEOUT, environment
from benchmarks.started import JobFailed

SCRIPTS = Path(__file__).parent / "scripts"
"""What runs in a rival's own interpreter."""
INPUT = (
    "per-sample fetch", "slow items", "slow collate", "padding", "too few workers", "too many workers",
    "workers restarted", "batch preparation", "list conversion",
)  # fmt: skip
"""Causes in what comes before the step's own work."""
AROUND = (
    "logging", "metrics", "checkpointing", "garbage collection", "batch preparation", "list conversion", "Python loop",
    "profiler left on", "leak",
)  # fmt: skip
"""Causes next to forward, backward and optimizer."""
MODEL = (
    "Python loop", "anomaly detection", "deterministic", "dense embedding gradient", "single-tensor optimizer",
    "unfused pointwise", "naive attention", "recomputation", "casts", "oversubscription", "denormals",
    "recompilation", "padding", "missing no_sync",
)  # fmt: skip
"""Causes in forward, backward and optimizer."""


@dataclass(frozen=True)
class Rival:
    """One tool, used in one way. meanings: its words, and the causes that each may stand for. harmless: words that are
    no complaint. how: in a sentence, how it is run. says: (the Python that has it, case, amount) to what it says."""

    name: str
    how: str
    meanings: Mapping[str, tuple[str, ...]]
    says: Callable[[str, Case, int], Reported]
    harmless: tuple[str, ...] = ()

    def adapter(self, python: str) -> Callable[[Case, int], Reported]:
        """The same call as that of steptime."""
        return lambda case, amount: self.says(python, case, amount)

    def words_for(self, cause: str) -> tuple[str, ...]:
        """The words that are right for a cause."""
        return tuple(word for word, causes in self.meanings.items() if cause in causes)


def run(words: list[str], folder: str | Path) -> str:
    """Standard output of a tool, started among the jobs so that they find their stopwatch. Raises JobFailed."""
    path = os.pathsep.join([str(JOBS), str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        words, cwd=folder, env={**environment(), "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=2 * TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise JobFailed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300])
    return done.stdout


def profiled(python: str, case: Case, amount: int, *further: str) -> object:
    """What profiled.py, a script, prints of a job, read from JSON. Raises JobFailed."""
    if case.ranks > 1:
        raise JobFailed("profiled in one process only")
    with tempfile.TemporaryDirectory() as folder:
        script = [python, str(SCRIPTS / "profiled.py"), *further, str(case.script), "--amount", str(amount)]
        return json.loads(run(script, folder).splitlines()[-1])
