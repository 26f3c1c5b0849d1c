"""User functions in the steps of a trace with Python stacks: the time of each by phase.

Stacks slow steps, most of all in functions with many calls: their times are good as fractions only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from steptime.analysis.operators import DISPATCH_GAP, operator_events, step_at
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import during
from steptime.analysis.timeline import Phase, PhaseName
from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, contains, measure, subtract, union
from steptime.quantities import SourceLine
from steptime.trace.call_tree import call_tree, exclusive_spans
from steptime.trace.links import UNKNOWN, host_forest, roles_of, source_line
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import TORCH_FRAME, matching


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """Time of a user function in one phase, without user functions that it calls. source: its first line, None for time
    in no user function. python: time outside operators, in intervals longer than a dispatch, in it and in library
    callees except torch, ns per step; operators: time in operators that it calls (in backward, in what autograd runs
    for them), ns per step."""

    source: SourceLine | None
    phase: PhaseName
    python: float
    operators: float


def function_uses(windows: Iterable[StepContext]) -> tuple[FunctionUse, ...]:
    """User functions in the windows with stacks, the longest first."""
    spent: defaultdict[tuple[SourceLine | None, Phase], Int64] = defaultdict(lambda: np.zeros(2, np.int64))
    steps = 0
    for window in windows:
        if window.stacks and len(window) and window.track is not None:
            steps += len(window)
            _add(window, window.track, spent)
    uses = (
        FunctionUse(source, phase.title, float(python) / steps, float(operators) / steps)
        for (source, phase), (python, operators) in spent.items()
    )
    return tuple(sorted(uses, key=lambda use: -use.python - use.operators))


def _add(window: StepContext, track: int, spent: dict[tuple[SourceLine | None, Phase], Int64]) -> None:
    trace, links = window.trace, window.links
    calls = operator_events(trace) | (trace.events.event_kind == EventKind.PYTHON)  # an annotation outlasts the call
    rows = np.flatnonzero(calls & (trace.events.track == track))  # that starts it
    tree = call_tree(trace.events.start[rows], trace.events.ends(rows))
    spans = exclusive_spans(tree)
    owner, length = rows[tree.rows][spans.owner], spans.end - spans.start
    inside = step_at(window.boundaries, spans.start) != UNKNOWN
    working = links.operator[owner] != UNKNOWN
    python = measure(_outside_operators(window, track), spans.start, spans.end)
    function = np.where(working, links.function[owner], _python_of(trace)[owner])
    name = np.where(function == UNKNOWN, UNKNOWN, trace.events.name[function].astype(np.int64))
    phase = _phases(window, spans.start)
    for key in np.unique(np.stack((name, phase), axis=1)[inside], axis=0).tolist():
        chosen = inside & (name == key[0]) & (phase == key[1])
        source = source_line(trace.symbols[key[0]]) if key[0] != UNKNOWN else None
        spent[source, Phase(key[1])] += (python[chosen & ~working].sum(), length[chosen & working].sum())


def _outside_operators(window: StepContext, track: int) -> Intervals:
    """Intervals of the steps outside operators that are longer than a dispatch."""
    trace = window.trace
    busy = during(trace, operator_events(trace) & (trace.events.track == track))
    free = subtract(union(window.boundaries[:, 0], window.boundaries[:, 1]), busy)
    long = free.end - free.start > DISPATCH_GAP
    return union(free.start[long], free.end[long])


def _python_of(trace: Trace) -> Int64:
    """User function whose own Python runs in each event: the innermost, UNKNOWN if torch's Python is within it."""
    users = roles_of(trace).function
    torchs: Bool = (trace.events.event_kind == EventKind.PYTHON) & matching(trace, TORCH_FRAME.match)
    nearest = host_forest(trace).nearest(users | torchs).astype(np.int64)
    return np.where((nearest != UNKNOWN) & users[nearest], nearest, UNKNOWN)


def _phases(window: StepContext, start: Int64) -> Int64:
    found = np.full(len(start), int(Phase.REST))
    for phase, ranges in window.phases.items():
        found[contains(ranges, start)] = phase
    return found
