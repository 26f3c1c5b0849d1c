"""What steptime itself cost: measured where the watch was off for some steps, else computed from its records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steptime.estimates import difference_of_medians
from steptime.journal import RECORD, Kind
from steptime.recording.recording import Process
from steptime.report.report import Cost
from steptime.timeline.timeline import Steps

RECORD_COST = 3500.0
"""ns that one record costs the job, patches and clock readings included: 10.1 µs for the three of a small model's step,
15.1 µs for the four with a loader (benchmarks/results/overhead-epyc-2cpu.md)."""
LEAST_STEPS = 5
"""On either side, for a difference that means something."""


def cost_of(process: Process, steps: Steps) -> Cost:
    """The cost of the watch and of the profiler in one process."""
    steady = np.flatnonzero(steps.steady)
    unwatched = ~(steps.watched | steps.warm_up | steps.disturbed | steps.profiled | steps.lined)
    on, off = steps.duration[_neighbours(steps, unwatched)], steps.duration[unwatched]
    measured = len(on) >= LEAST_STEPS and len(off) >= LEAST_STEPS
    begins = np.sort(process.intervals.begin)
    inside = np.searchsorted(begins, steps.end[steady]) - np.searchsorted(begins, steps.begin[steady])
    records = float(inside.mean()) if len(steady) else None
    pauses = process.intervals.kind == int(Kind.PAUSE)
    return Cost(
        watch=difference_of_medians(on, off) if measured else None,
        computed=records * RECORD_COST if records is not None else None,
        profiled_steps=int(steps.profiled.sum()),
        profile_ns=sum(trace.end - trace.begin for trace in process.traces),
        pause_ns=int((process.intervals.end[pauses] - process.intervals.begin[pauses]).sum()),
        bytes_per_step=records * RECORD.size if records is not None else None,
    )


def _neighbours(steps: Steps, unwatched: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The steady steps taken in turns with the unwatched ones: a machine that drifts must not pass for our cost."""
    if not unwatched.any():
        return unwatched
    off = np.flatnonzero(unwatched)
    blocks = np.split(off, np.flatnonzero(np.diff(off) > 1) + 1)
    turn = max(map(len, blocks))
    near = np.zeros(len(unwatched), np.bool_)
    near[max(0, off[0] - turn) : off[-1] + turn + 1] = True
    return near & steps.steady
