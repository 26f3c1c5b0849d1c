"""The steps of a trace that nobody else knows the steps of: by what marks them, else by the same things done again, at
the same pace.

Conservative: at least three repetitions, of nearly the same length, that fill most of the trace. A wrong step is worse
than none, because everything else is said per step.
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
"""Repetitions."""
EVEN = 0.25
"""How far a repetition may be from the median length. Real steps of one job stay within it but for the first and what
lies between two epochs; without a mark that much looseness would find steps in anything."""
FILLED = 0.5
"""Fraction of the trace's time, so that a loop inside one part of a step is not taken for the steps."""
ALIKE = 0.9
"""Fraction of the names in a repetition that must be those of the one before."""
LONGEST = 200_000
"""Events that are compared; a period shows in fewer."""
NOWHERE = np.empty(0, np.int64)
LONGEST_NAME = 60
MOST_TURNS = 4
OTHER_WORK = 0.2
"""Steps of one kind that log or clip now and then differ by less."""
SAME_WORK = 0.02
Rows: TypeAlias = npt.NDArray[Any]


def repetitions(name: Int64, start: Int64, span: int, *, marks: bool) -> Int64 | None:
    """Positions of the events that the repetitions, and what follows the last one, start with. name, start: of events
    in order of time. span: ns of the whole trace.

    marks: the events are outermost ranges, of which one name that starts at an even pace will do; of several such names
    the rarest, of those the one that starts first. Else the shortest run of events that comes again and again is looked
    for, with each name as its first, the rarest first: what happens once in a step is the best mark of it.
    """
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
    """True if the runs between the places hold the same names in the same order, but for a few."""
    lengths = np.diff(places)
    period = int(lengths.min())
    if period < 2 or lengths.max() > period / ALIKE:
        return False
    runs = name[places[:-1, None] + np.arange(period)]
    return bool(((runs[1:] == runs[:-1]).mean(axis=1) >= ALIKE).all()) and len(unique(runs[0])) > 1


def _nothing_else(name: Int64, places: Int64) -> bool:
    """True if before and after the repetitions there is only what they are made of. The layers of one forward pass
    repeat, too, but an embedding comes before them and a head behind."""
    outside = np.concatenate((name[: places[0]], name[places[-1] :]))
    return bool(np.isin(outside, name[places[0] : places[-1]]).all())


@dataclass(frozen=True, slots=True, eq=False)
class FoundSteps:
    """boundaries: (n, 2) starts and ends in ns, in time order, without overlap. how: what they were found by, in
    words. lost: a sentence on what is left out because the profiler lost it, or ""."""

    boundaries: Int64
    how: str
    lost: str = ""


def steps_of(trace: Trace) -> Int64:
    """(n, 2) starts and ends in ns; see `find_steps`."""
    return find_steps(trace).boundaries


def find_steps(trace: Trace) -> FoundSteps:
    """The steps, by the first of these that the trace has: the profiler's own marks, the ends of optimizer updates, the
    calls of zero_grad, the loader's batches, a range, the operators or the kernels that repeat at an even pace; else
    the whole trace as one step. None without events. A trace that was put together from several recordings has no step
    across two of them.
    """
    if not len(trace.events):
        return FoundSteps(np.empty((0, 2), np.int64), "there is no event")
    for found in _ways(trace):
        if found is not None and len(found.boundaries):
            return found
    windows = trace.windows or ((int(trace.events.start.min()), int(trace.events.end.max())),)
    whole = "each recording counts as one step" if trace.windows else "the whole trace counts as one step"
    return FoundSteps(np.array(windows, np.int64), f"{whole}, because it has no step marks and no regular repetition")


def whole_steps(trace: Trace) -> tuple[Trace, FoundSteps]:
    """The steps of which a trace holds what the device did; and the trace, without its device where it holds that of no
    step: an account of it would count what is missing as idle time."""
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
    """Steps on the device: each ends with the last kernel that was launched in it, and the next starts there.

    The host runs ahead of the device, so a step's kernels outlast the host's step. Kernels of a step that ran before
    its start as moved here still count as compute, in the step in whose time they ran: a breakdown is about time, not
    about work. boundaries: (n, 2) ns on the host, in time order; of no step there is none on the device.
    """
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
    """The end of each step's last update. Several optimizers that take turns belong to one step: it ends where the
    longest way to the next update starts. An update may hold another."""
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
    """How many updates make a step: the period of their names or, of optimizers of one name, of the numbers of
    operators between them (a network and its adversary). operators: one less than names."""
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
    """By ranges, operators and kernels that come again at an even pace."""
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
            # Steps are as the host sees them, so by launches where the trace holds them.
            yield FoundSteps(_between(trace, events.start[first if (hosts == UNKNOWN).any() else hosts]), how)


def _repeating(trace: Trace, roles: Roles) -> Iterator[tuple[str, Rows]]:
    """Rows in order of time among which steps may show, and what they are."""
    track = training_track(trace)
    if track is not None:
        yield "range", _outermost(trace, track, roles.annotation)
        yield "operator", _outermost(trace, track, roles.operator & ~roles.engine)
    kernels = np.flatnonzero(trace.events.event_kind == EventKind.KERNEL)
    yield "kernel", kernels[np.argsort(trace.events.start[kernels], kind="stable")]


def _one_by_one(trace: Trace, roles: Roles, rows: Rows) -> bool:
    """True if no launch and no range of the host holds two of these events: else they repeat within one step, as layers
    do."""
    known = rows[rows != UNKNOWN]
    around = host_forest(trace).around(known, roles.annotation, itself=False)
    around = around[around != UNKNOWN]
    return len(unique(known)) == len(known) and len(unique(around)) == len(around)


def _outermost(trace: Trace, track: int, chosen: Bool) -> Rows:
    """Rows of the chosen events of a track that no other of them encloses, in time order."""
    events = trace.events
    rows = np.flatnonzero(chosen & host_events(trace) & (events.track == track)).astype(np.int32)
    rows = rows[forest_of(events, rows).parent[rows] == UNKNOWN]
    outermost: Rows = rows[nesting_order(events.start[rows], events.ends(rows))]
    return outermost


def _between(trace: Trace, times: Int64) -> Int64:
    """(n, 2): from one time to the next, but not across two recordings."""
    times = unique(times)
    pairs = np.stack((times[:-1], times[1:]), axis=1)
    cuts = np.array([start for start, _ in trace.windows[1:]], np.int64)
    together: Int64 = pairs[np.searchsorted(cuts, pairs[:, 0], "right") == np.searchsorted(cuts, pairs[:, 1], "right")]
    return together


def _ranges(trace: Trace, test: Callable[[str], object]) -> tuple[Int64, Int64]:
    """Named annotations of the host, of the training thread where it has some: (n, 2) ns and their names."""
    events = trace.events
    chosen: Bool = matching(trace, test) & events.are(EventKind.ANNOTATION, EventKind.OPERATOR)
    track = training_track(trace)
    if track is not None and (chosen & (events.track == track)).any():
        chosen &= events.track == track
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    return np.stack((events.start[rows], events.ends(rows)), axis=1), events.name[rows].astype(np.int64)


def _apart(ranges: Int64) -> Int64:
    """Ranges that overlap (several profilers, rounding) start where the one before ends; what is left empty goes."""
    ends = np.maximum.accumulate(ranges[:, 1])
    starts = np.maximum(ranges[:, 0], np.concatenate((ranges[:1, 0], ends[:-1])))
    kept = ends > starts
    return np.stack((starts[kept], ends[kept]), axis=1)
