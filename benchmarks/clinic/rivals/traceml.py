"""TraceML: `traceml run` of the unmodified job, and of the job instrumented as its README says."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clinic.cases import Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.rivals.rival import AROUND, INPUT, MODEL, SCRIPTS, Rival, run
from benchmarks.started import JobFailed

MEANINGS = {
    "INPUT_BOUND": INPUT,
    "RESIDUAL_HEAVY": AROUND,
    "COMPUTE_BOUND": MODEL,
    "H2D_BOUND": (),
    "STRAGGLER": ("straggler",),
    "INPUT_STRAGGLER": ("straggler",),
    "COMPUTE_STRAGGLER": ("straggler",),
    "HIGH_CPU": ("oversubscription",),
    "HIGH_PROCESS_CPU": ("oversubscription",),
    "HIGH_HOST_MEMORY": ("leak",),
    "HIGH_PROCESS_RSS": ("leak",),
}
HARMLESS = ("COMPUTE_BOUND", "HIGH_CPU", "HIGH_PROCESS_CPU")
"""A training on CPUs is meant to use them; and on a shared machine others do, too."""
UNDECIDED = ("INSUFFICIENT_STEP_TIME_DATA", "NO_DATA", "WARMUP", "INCOMPLETE_DATA")
SECTIONS = ("step_time", "system", "process", "step_memory")


def says(instrumented: bool, python: str, case: Case, amount: int) -> Reported:
    """Its primary diagnosis, then the issues of its sections that we know. Raises JobFailed."""
    if case.ranks > 1 and instrumented:
        raise JobFailed("instrumented in one process only")
    with tempfile.TemporaryDirectory() as folder:
        script = (
            [str(SCRIPTS / "with_traceml.py"), "--args", str(case.script)]
            if instrumented
            else [str(case.script), "--args"]
        )
        options = [
            "--mode",
            "summary",
            "--logs-dir",
            folder,
            "--run-name",
            "clinic",
            "--nproc-per-node",
            str(case.ranks),
        ]
        run([str(Path(python).parent / "traceml"), "run", *options, *script, "--amount", str(amount)], folder)
        summary: dict[str, Any] = json.loads(Path(folder, "clinic", "final_summary.json").read_text())
    first = summary["primary_diagnosis"]["kind"]
    issues = [issue["kind"] for name in SECTIONS for issue in summary[name].get("issues", ())]
    causes = tuple(dict.fromkeys(kind for kind in (first, *issues) if kind in MEANINGS))
    bottleneck = "undecided" if first in UNDECIDED else first
    return Reported(bottleneck, causes, ((0.0, 0.0, 0.0),) * len(causes), (None,) * len(causes), tuple(issues))


UNMODIFIED = Rival("traceml", "`traceml run` of the unmodified script", MEANINGS, partial(says, False), HARMLESS)
INSTRUMENTED = Rival(
    "traceml-instrumented",
    "`traceml run` of the script with traceml.init() and trace_step() from the first forward of a step to its end; the "
    "HF Trainer and Lightning, which it instruments itself, as they are",
    MEANINGS,
    partial(says, True),
    HARMLESS,
)
