"""What steptime itself cost: measured where the watch was off for some steps, else computed from its records."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Bool, Float64
from steptime.estimates import mean_of
from steptime.journal import RECORD, Kind
from steptime.recording.recording import Process
from steptime.report.report import Cost
from steptime.timeline.timeline import Steps

RECORD_COST = 3500.0
"""ns that one record costs the job, patches and clock readings included: 10.1 µs for the three of a small model's step,
15.1 µs for the four with a loader (benchmarks/results/overhead-epyc-2cpu.md)."""
LEAST_TURNS = 2
"""For a difference with an interval."""


def cost_of(process: Process, steps: Steps) -> Cost:
    """The cost of the watch and of the profiler in one process."""
    steady = np.flatnonzero(steps.steady)
    unwatched = ~(steps.watched | steps.warm_up | steps.disturbed | steps.profiled | steps.lined)
    turns = _turns(steps, unwatched)
    begins = np.sort(process.intervals.begin)
    inside = np.searchsorted(begins, steps.end[steady]) - np.searchsorted(begins, steps.begin[steady])
    records = float(inside.mean()) if len(steady) else None
    pauses = process.intervals.kind == int(Kind.PAUSE)
    return Cost(
        watch=mean_of(turns) if len(turns) >= LEAST_TURNS else None,
        computed=records * RECORD_COST if records is not None else None,
        profiled_steps=int(steps.profiled.sum()),
        profile_ns=sum(trace.end - trace.begin for trace in process.traces),
        pause_ns=int((process.intervals.end[pauses] - process.intervals.begin[pauses]).sum()),
        bytes_per_step=records * RECORD.size if records is not None else None,
    )


def _turns(steps: Steps, unwatched: Bool) -> Float64:
    """Of each turn, how much longer the watched steps behind it took than its own, in the median. Steps of one turn are
    alike, so that a turn, and not a step, is what the interval counts; and a machine that drifts over the run must not
    pass for our cost."""
    off = np.flatnonzero(unwatched)
    blocks = [block for block in np.split(off, np.flatnonzero(np.diff(off) > 1) + 1) if len(block)]
    differences = []
    ends = [*(block[0] for block in blocks[1:]), len(unwatched)]
    for block, following in zip(blocks, ends, strict=False):
        behind = np.arange(block[-1] + 1, min(following, block[-1] + 1 + len(block)))
        on = behind[steps.steady[behind]]
        if len(on):
            differences.append(float(np.median(steps.duration[on]) - np.median(steps.duration[block])))
    return np.array(differences)
