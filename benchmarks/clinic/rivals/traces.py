"""Tools that read a trace: HTA and traceinsight, one program under two names, and the profiler's TensorBoard plugin."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.clinic.cases import Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.rivals.rival import AROUND, INPUT, MODEL, SCRIPTS, Rival, profiled, run

COLUMNS = {
    "idle_time_pctg": (*INPUT, *AROUND, "single-tensor optimizer"),
    "compute_time_pctg": MODEL,
    "non_compute_time_pctg": ("casts", "straggler", "missing no_sync"),
}
"""Of HTA's temporal breakdown."""
PARTS = {
    "DataLoader": INPUT,
    "Communication": ("straggler", "missing no_sync"),
    "CPU Exec": MODEL,
    "Other": (*AROUND, "single-tensor optimizer"),
}
"""Of a step, by the plugin."""


def reads(script: str) -> Callable[[str, Case, int], Reported]:
    """What a script says of the trace that torch.profiler has written: one word. Both raise JobFailed."""

    def says(python: str, case: Case, amount: int) -> Reported:
        with tempfile.TemporaryDirectory() as folder:
            profiled(sys.executable, case, amount, "--trace", str(Path(folder, "rank-0.pt.trace.json")))
            word = run([python, str(SCRIPTS / script), folder], folder).splitlines()[-1]
        return Reported(word, (word,), ((0.0, 0.0, 0.0),), (None,))

    return says


HTA, TRACEINSIGHT = (
    Rival(
        name,
        "the largest column of get_temporal_breakdown() of a trace by torch.profiler",
        COLUMNS,
        reads("with_hta.py"),
        ("compute_time_pctg",),
    )
    for name in ("hta", "traceinsight")
)
TENSORBOARD = Rival(
    "torch-tb-profiler",
    "what its recommendation is about, else the largest part of the step, of a trace by torch.profiler",
    PARTS,
    reads("with_tensorboard.py"),
    ("CPU Exec",),
)
