"""Steps of a trace without a recording: by what marks them, or else by sequences that repeat at an even pace.

Conservative: at least three repetitions of nearly the same length that fill most of the trace. A wrong step is worse
than none, because everything else is reported per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from steptime.analysis.device_activity import device_activities, held_whole, host_alone
from steptime.analysis.threads import training_track
from steptime.arrays import Bool, Int64, distinct, unique
from steptime.trace.call_tree import nesting_order
from steptime.trace.links import UNKNOWN, Roles, forest_of, host_events, host_forest, launches_of, roles_of
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import LOADER, OPTIMIZER_STEP, STEP, ZERO_GRAD, matching

LEAST = 3
"""Fewest repetitions."""
EVEN = 0.25
"""Largest deviation of a repetition from the median length, as a fraction. Real steps of one job stay within it, except
the first and gaps between epochs. Without a mark, that much looseness would find steps in anything."""
FILLED = 0.5
"""Fraction of the trace's time that the repetitions must fill, so that a loop inside one part of a step is no step."""
ALIKE = 0.9
"""Fraction of the names in a repetition that must equal those of the one before."""
LONGEST = 200_000
"""Most events that are compared; a period shows in fewer."""
NOWHERE = np.empty(0, np.int64)
LONGEST_NAME = 60
MOST_TURNS = 4
OTHER_WORK = 0.2
"""Largest relative difference in operators between steps of one kind that log or clip now and then."""
SAME_WORK = 0.02
Rows: TypeAlias = npt.NDArray[Any]


def repetitions(name: Int64, start: Int64, span: int, *, marks: bool) -> Int64 | None:
    """Positions of the events that start each repetition and the rest after the last one; None if nothing repeats.
    name, start: name and start of the events, in order of time. span: duration of the whole trace, ns. marks: True if
    the events are outermost ranges; then one name at an even pace is enough, the rarest, and of equally rare ones the
    first. Otherwise the function looks for the shortest repeated sequence, trying each name as its start, the rarest
    first, since what happens once per step marks it best."""
    if not marks:
        name, start = name[:LONGEST], start[:LONGEST]
    first, number = distinct(name)
    numbers, counts = name[first], np.bincount(number)
    for at in np.lexsort((first if marks else numbers, counts)).tolist():
        places = np.flatnonzero(name == numbers[at]) if counts[at] > LEAST else NOWHERE
        if _even(start[places], span) and (marks or (_same(name, places) and _nothing_else(name, places))):
            return places
    return None


def _even(starts: Int64, span: int) -> bool:
    periods = np.diff(starts)
    if len(periods) < LEAST:
        return False
    usual = float(np.median(periods))
    even = np.abs(periods - usual) <= EVEN * usual
    return bool(even.all()) and int(periods.sum()) >= FILLED * span


def _same(name: Int64, places: Int64) -> bool:
    """True if the sequences between the positions hold the same names in the same order, with few exceptions."""
    lengths = np.diff(places)
    period = int(lengths.min())
    if period < 2 or lengths.max() > period / ALIKE:
        return False
    runs = name[places[:-1, None] + np.arange(period)]
    return bool(((runs[1:] == runs[:-1]).mean(axis=1) >= ALIKE).all()) and len(unique(runs[0])) > 1


def _nothing_else(name: Int64, places: Int64) -> bool:
    """True if the events before and after the repetitions have only names from inside them. The layers of one forward
    pass repeat too, but an embedding comes before them and a head after."""
    outside = np.concatenate((name[: places[0]], name[places[-1] :]))
    return bool(np.isin(outside, name[places[0] : places[-1]]).all())


@dataclass(frozen=True, slots=True, eq=False)
class FoundSteps:
    """Steps of a trace. boundaries: starts and ends, (n, 2), ns, in time order, without overlap. how: their source, in
    words. lost: a sentence on steps that are left out because the profiler lost their device work, or ""."""

    boundaries: Int64
    how: str
    lost: str = ""


def steps_of(trace: Trace) -> Int64:
    """Starts and ends of the steps, (n, 2), ns; see `find_steps`."""
    return find_steps(trace).boundaries


def find_steps(trace: Trace) -> FoundSteps:
    """Steps of a trace, by the first of these sources that the trace has: the profiler's marks, ends of optimizer
    updates, calls of zero_grad, the loader's batches, or a range, operators or kernels that repeat at equal distances.
    Without any, the whole trace is one step. No step for a trace without events. In a trace joined from several
    recordings no step crosses from one to another."""
    if not len(trace.events):
        return FoundSteps(np.empty((0, 2), np.int64), "there is no event")
    for found in _ways(trace):
        if found is not None and len(found.boundaries):
            return found
    windows = trace.windows or ((int(trace.events.start.min()), int(trace.events.end.max())),)
    whole = "each recording counts as one step" if trace.windows else "the whole trace counts as one step"
    return FoundSteps(np.array(windows, np.int64), f"{whole}, because it has no step marks and no regular repetition")


def whole_steps(trace: Trace) -> tuple[Trace, FoundSteps]:
    """(trace, its steps whose device work is recorded). If no step has such work, the trace is returned without its
    device, since a breakdown would count the missing work as idle time."""
    found = find_steps(trace)
    whole = held_whole(trace, found.boundaries)
    if whole.all():
        return trace, found
    steps = f"{int((~whole).sum())} of {len(whole)} steps in {trace.path.name}"
    lost = f"{steps}, whose device activity the profiler lost"
    if whole.any():
        return trace, FoundSteps(found.boundaries[whole], found.how, f"{lost}.")
    return host_alone(trace), FoundSteps(found.boundaries, found.how, f"the device's side of {lost}.")


def device_step_bounds(trace: Trace, boundaries: Int64) -> Int64:
    """Steps on the device, (n, 2), ns: each ends with the last kernel launched in it, and the next starts there. The
    CPU runs ahead of the device, so a step's kernels outlast the CPU's step. A kernel that ran before its step started
    on the device counts in the step during which it ran, because a breakdown is about time, not about work. boundaries:
    steps on the CPU, (n, 2), ns, in time order."""
    if not len(boundaries):
        return boundaries
    events = trace.events
    activities = device_activities(trace)
    launched = activities.launch != UNKNOWN
    calls, done = activities.launch[launched], events.ends(activities.rows[launched])
    step = np.searchsorted(boundaries[:, 0], events.start[calls], side="right") - 1
    inside = (step >= 0) & (events.ends(calls) <= boundaries[np.maximum(step, 0), 1])
    ends = boundaries[:, 1].copy()
    np.maximum.at(ends, step[inside], done[inside])
    ends = np.maximum.accumulate(ends)
    starts = np.maximum(boundaries[:, 0], np.concatenate((boundaries[:1, 0], ends[:-1])))
    return np.stack((starts, ends), axis=1)


def _ways(trace: Trace) -> Iterator[FoundSteps | None]:
    yield FoundSteps(_apart(_ranges(trace, STEP.match)[0]), "the profiler's own marks (ProfilerStep#)")
    yield FoundSteps(_between(trace, _updates(trace)), "from the end of one optimizer update to the end of the next")
    cleared = _ranges(trace, ZERO_GRAD.match)[0]
    yield FoundSteps(_between(trace, cleared[:, 0]), "from one Optimizer.zero_grad to the next")
    batches = _ranges(trace, LOADER.match)[0]
    yield FoundSteps(_between(trace, batches[:, 0]), "from one batch of the DataLoader to the next")
    yield from _repetitions(trace)


def _updates(trace: Trace) -> Int64:
    """End of each step's last update, ns. Optimizers that take turns belong to one step, which ends before the longest
    mean pause between updates. An update may enclose another."""
    ranges, names = _ranges(trace, OPTIMIZER_STEP.match)
    reached = np.maximum.accumulate(ranges[:, 1])
    outer = np.append(True, np.diff(reached) > 0)[: len(reached)]
    ranges, names = ranges[outer], names[outer]
    ends: Int64 = reached[outer]
    starts = np.sort(trace.events.start[trace.events.event_kind == EventKind.OPERATOR])
    turns = _turns(names, np.diff(np.searchsorted(starts, ends)))
    if turns < 2:
        return ends
    pauses = ranges[1:, 0] - ends[:-1]
    mean = [pauses[turn::turns].mean() for turn in range(turns)]
    last: Int64 = ends[int(np.argmax(mean)) :: turns]
    return last


def _turns(names: Int64, operators: Int64) -> int:
    """Number of updates per step: the period of their names or, for one name, of the numbers of operators between them
    (a network and its adversary). operators: one entry less than names."""
    distinct = len(unique(names))
    if distinct > 1:
        return distinct if len(names) >= 2 * distinct and (names[distinct:] == names[:-distinct]).all() else 1
    for turns in range(1, MOST_TURNS + 1):
        if len(operators) < 3 * turns:
            return 1
        differ = np.abs(operators[turns:] - operators[:-turns]) / np.maximum(operators[:-turns], 1)
        if differ.max(initial=0) <= (OTHER_WORK if turns == 1 else SAME_WORK):
            return turns
    return 1


def _repetitions(trace: Trace) -> Iterator[FoundSteps | None]:
    """Yields steps by repetition of ranges, operators and kernels at an even pace."""
    events, roles, launch = trace.events, roles_of(trace), launches_of(trace)
    span = int(events.end.max() - events.start.min())
    for kind, rows in _repeating(trace, roles):
        places = repetitions(events.name[rows].astype(np.int64), events.start[rows], span, marks=kind == "range")
        if places is None:
            continue
        first = rows[places]
        hosts = launch[first] if kind == "kernel" else first
        if _one_by_one(trace, roles, hosts):
            name = trace.symbols[events.name[first[0]]]
            name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
            how = f'by repetition at an even pace, each time from the {kind} "{name}" on'
            # Steps are as the CPU sees them, so by launches where the trace holds them.
            yield FoundSteps(_between(trace, events.start[first if (hosts == UNKNOWN).any() else hosts]), how)


def _repeating(trace: Trace, roles: Roles) -> Iterator[tuple[str, Rows]]:
    """Yields (kind, rows in time order) of the events among which steps may repeat."""
    track = training_track(trace)
    if track is not None:
        yield "range", _outermost(trace, track, roles.annotation)
        yield "operator", _outermost(trace, track, roles.operator & ~roles.engine)
    kernels = np.flatnonzero(trace.events.event_kind == EventKind.KERNEL)
    yield "kernel", kernels[np.argsort(trace.events.start[kernels], kind="stable")]


def _one_by_one(trace: Trace, roles: Roles, rows: Rows) -> bool:
    """True if no launch and no CPU range holds two of these events. Otherwise they repeat within one step, as layers
    do."""
    known = rows[rows != UNKNOWN]
    around = host_forest(trace).around(known, roles.annotation, itself=False)
    around = around[around != UNKNOWN]
    return len(unique(known)) == len(known) and len(unique(around)) == len(around)


def _outermost(trace: Trace, track: int, chosen: Bool) -> Rows:
    """Rows of the chosen events on a track that no other chosen event encloses, in time order."""
    events = trace.events
    rows = np.flatnonzero(chosen & host_events(trace) & (events.track == track)).astype(np.int32)
    rows = rows[forest_of(events, rows).parent[rows] == UNKNOWN]
    outermost: Rows = rows[nesting_order(events.start[rows], events.ends(rows))]
    return outermost


def _between(trace: Trace, times: Int64) -> Int64:
    """Intervals from each time to the next, (n, 2), except across two recordings."""
    times = unique(times)
    pairs = np.stack((times[:-1], times[1:]), axis=1)
    cuts = np.array([start for start, _ in trace.windows[1:]], np.int64)
    together: Int64 = pairs[np.searchsorted(cuts, pairs[:, 0], "right") == np.searchsorted(cuts, pairs[:, 1], "right")]
    return together


def _ranges(trace: Trace, test: Callable[[str], object]) -> tuple[Int64, Int64]:
    """Named annotations on the CPU, on the training thread if it has any: ((n, 2) ns, their names)."""
    events = trace.events
    chosen: Bool = matching(trace, test) & events.are(EventKind.ANNOTATION, EventKind.OPERATOR)
    track = training_track(trace)
    if track is not None and (chosen & (events.track == track)).any():
        chosen &= events.track == track
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    return np.stack((events.start[rows], events.ends(rows)), axis=1), events.name[rows].astype(np.int64)


def _apart(ranges: Int64) -> Int64:
    """Ranges without overlaps (several profilers, rounding): each starts no earlier than the one before ends; empty
    ones are dropped."""
    ends = np.maximum.accumulate(ranges[:, 1])
    starts = np.maximum(ranges[:, 0], np.concatenate((ranges[:1, 0], ends[:-1])))
    kept = ends > starts
    return np.stack((starts[kept], ends[kept]), axis=1)
