"""slowai 0.10: `slowai diagnose --json` of a file whose main() is the whole job."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.clinic.cases import JOBS, Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.rivals.rival import Rival, run
from benchmarks.started import JobFailed

WORKLOAD = """import runpy, sys
sys.path.insert(0, {jobs!r})


def main():
    sys.argv = [{script!r}, "--amount", "{amount}"]
    runpy.run_path({script!r}, run_name="__main__")
"""
MEANINGS = {
    "overhead": (
        "Python loop", "metrics", "per-sample fetch", "list conversion", "slow collate", "single-tensor optimizer",
        "anomaly detection", "unfused pointwise",
    ),
    "memory": ("unfused pointwise", "casts", "naive attention", "dense embedding gradient", "denormals"),
    "compute": ("naive attention", "padding", "recomputation", "oversubscription"),
}  # fmt: skip
"""By the fixes that it lists for each bottleneck."""


def says(python: str, case: Case, amount: int) -> Reported:
    """Its bottleneck; "unknown" is an abstention. Raises JobFailed."""
    if case.ranks > 1:
        raise JobFailed("diagnoses one process only")
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder, "workload.py")
        workload.write_text(WORKLOAD.format(jobs=str(JOBS), script=str(case.script), amount=amount))
        printed = run([python, "-m", "slowai", "diagnose", "--json", str(workload)], folder)
    bottleneck = json.loads(printed[printed.index("{\n") :])["regime"]
    if bottleneck == "unknown":
        return Reported("undecided")
    return Reported(bottleneck, (bottleneck,), ((0.0, 0.0, 0.0),), (None,))


SLOWAI = Rival("slowai", "`slowai diagnose --json` of a file whose main() runs the job", MEANINGS, says, ("compute",))
