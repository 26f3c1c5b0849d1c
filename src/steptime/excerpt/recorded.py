"""The excerpt of a recording: a profiled step, with the phases that were watched and the workers of its loaders."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from steptime.excerpt.cut import Beside, cut, usual
from steptime.excerpt.excerpt import Detail, Excerpt, Label
from steptime.excerpt.strips import Strip
from steptime.hardware.machine import Machine
from steptime.journal import Kind
from steptime.ledger.account import claims_of, has_kernels
from steptime.ledger.recorded import RecordedAccount, Window
from steptime.ledger.source_lines import sources_of
from steptime.ledger.trace_steps import reach
from steptime.quantities import SourceLine
from steptime.recording.recording import IntervalTable, Process
from steptime.timeline.timeline import Phase, Steps

_WORK = {Kind.FETCH: Label("reads items", "input"), Kind.COLLATE: Label("collates", "operator"),
         Kind.QUEUE: Label("waits for an index", "other")}  # fmt: skip
MOST_WORKERS = 32


def excerpt_of_process(
    process: Process, steps: Steps, account: RecordedAccount, machine: Machine | None = None
) -> Excerpt | None:
    """The usual one of the profiled steps; None where none was profiled."""
    timed = [each for each in account.windows if not each.stacks and len(each.borders)]
    if not timed:
        return None
    window = max(timed, key=lambda each: (has_kernels(each.trace), len(each.borders)))
    trace = window.trace
    windows = reach(trace, window.borders) if has_kernels(trace) else window.borders
    at = usual(windows[:, 1] - windows[:, 0])
    begin, end = window.borders[at].tolist()
    number = int(np.searchsorted(steps.end, end - window.shift))
    sources: dict[str, SourceLine] = {}
    for each in account.windows:
        sources |= sources_of(each.trace, training_thread=each.thread) if each.stacks else {}
    beside = Beside(
        input_ranges=window.phases[Phase.INPUT],
        compile_ranges=window.compiling,
        claims=claims_of(
            trace,
            input_ranges=window.phases[Phase.INPUT],
            compile_ranges=window.compiling,
            phase_ranges=window.phases,
            training_thread=window.thread,
            machine=machine,
        ),
        phases={phase.name.lower(): held for phase, held in window.phases.items()},
        thread=window.thread,
        sources=sources,
        strips=tuple(_workers(process.workers, window, min(begin, int(windows[at, 0])), max(end, int(windows[at, 1])))),
    )
    count = len(windows)
    how = "the profiled step" if count == 1 else f"of {count} profiled steps the one next to their median"
    return cut(trace, window.borders, windows, at, number, how, beside)


def _workers(table: IntervalTable, window: Window, begin: int, end: int) -> Iterator[Strip]:
    """What each worker of a loader did between two times."""
    starts, stops = table.begin + window.shift, table.end + window.shift
    inside = (starts < end) & (stops > begin) & np.isin(table.kind, [int(kind) for kind in _WORK])
    loaders = np.stack((table.identity.astype(np.int64), table.thread.astype(np.int64)), axis=1)
    present = np.unique(loaders[inside], axis=0)[:MOST_WORKERS]
    for identity, thread in present.tolist():
        mine = np.flatnonzero(inside & (loaders == (identity, thread)).all(axis=1))
        kinds = list(_WORK)
        label = np.array([kinds.index(Kind(kind)) for kind in table.kind[mine].tolist()], np.int64)
        yield Strip(
            f"Loader's worker {thread}", "worker", starts[mine], stops[mine], label, tuple(_WORK.values()),
            label * 0, (Detail(),),
        )  # fmt: skip
