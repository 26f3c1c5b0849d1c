"""HTA and traceinsight, one program under two names: what they make of the trace of a job."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.clinic.cases import Case
from benchmarks.clinic.diagnosed import Said
from benchmarks.clinic.rivals.rival import AROUND, INPUT, MODEL, SCRIPTS, Rival, profiled, run

MEANINGS = {
    "idle_time_pctg": (*INPUT, *AROUND, "single-tensor optimiser"),
    "compute_time_pctg": MODEL,
    "non_compute_time_pctg": ("casts", "late rank", "missing no_sync"),
}
"""Columns of its temporal breakdown, of which the largest is taken."""


def says(python: str, case: Case, amount: int) -> Said:
    """The largest column of the temporal breakdown of a trace that torch.profiler has written. Raises JobFailed."""
    with tempfile.TemporaryDirectory() as folder:
        profiled(sys.executable, case, amount, "--trace", str(Path(folder, "rank-0.json")))
        word = run([python, str(SCRIPTS / "with_hta.py"), folder], folder).split()[-1]
    return Said(word, (word,), ((0.0, 0.0, 0.0),), (None,))


HTA, TRACEINSIGHT = (
    Rival(
        name,
        "the largest column of get_temporal_breakdown() of a trace by torch.profiler",
        MEANINGS,
        says,
        ("compute_time_pctg",),
    )
    for name in ("hta", "traceinsight")
)
