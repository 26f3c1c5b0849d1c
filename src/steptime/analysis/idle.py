"""Idle intervals of the device and what the threads that end them were doing.

An idle interval ends with a device activity, which a thread of the CPU launched; what that thread was doing explains
the interval. Autograd's engine works for the training thread, which waits meanwhile: what one ends, both explain. What
nothing in the trace launched, and the idle time at the very end, is explained by the training thread.

*unrecorded*: the device was busy with unrecorded work. Either the activity that ends the interval was launched, and the
CPU done with it, longer before than a launch takes; or a call that waits for the device started while the device idled,
and waited. So the device was at work, or waited for something, that the trace does not hold: nobody on the CPU is to
blame, whatever it was at. *input*: in the loader's next(), or batch preparation that the caller knows of. *sync*: the
device ran empty inside a call that waits for it, such as a blocking copy. All idle time up to the launch counts,
because without the wait the queue would not have been empty. Or the CPU is in such a call, or in a staged copy, for
longer than a launch takes. *compile*. *overhead*: inside operators and runtime calls, in gaps at the cadence of
dispatching, and from the launch to the start of the activity. *python*: everything else of that thread (of the training
thread where both explain), inside a Python function where stacks were recorded. Of a thread of which the trace holds
nothing but marks, or nothing but runtime calls, nothing is known: that time stays unexplained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.categories import Category, Claims
from steptime.analysis.device_activity import device_activities, device_time
from steptime.analysis.operators import DISPATCH_GAP, bridged, grouped, operator_events, per_step, source_of
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import autograd_tracks, compile_time, during, input_time, recorded_time
from steptime.arrays import PIECE, Bool, Int8, Int32, Int64, Numbers, distinct, give_back, unique
from steptime.intervals import EMPTY, Intervals, contains, instants, intersect, join, subtract, touching, union
from steptime.quantities import SourceLine
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.call_tree import ROOT, CallTree, enclosing, innermost_at, nesting_order
from steptime.trace.links import FRAME, UNKNOWN, Links, host_events, host_forest, running_before
from steptime.trace.table import EventKind, EventTable, Trace
from steptime.trace.vendors import (
    ALLOCATION,
    COPY_CALL,
    LIBRARY_COPIES,
    LOADER,
    STEP,
    SYNCHRONISATION,
    is_engine,
    matching,
    of_symbols,
)

CATEGORIES = (
    Category.UNRECORDED, Category.INPUT, Category.SYNC, Category.COMPILE, Category.OVERHEAD, Category.PYTHON
)  # fmt: skip
WORTH_A_NAME = 10
"""Divisor of the idle time: a function with less than a tenth of it is not named."""
NEARLY_ALL = 0.9
"""Fraction of a function's time: if one function that it calls has this much, only the called one is named."""
LONGEST_RETURN = 1_000_000
"""Longest return of a call that waits for an idle device, ns. It takes microseconds, and up to this on a busy CPU."""
BY_LINE = (Category.SYNC, Category.PYTHON)
"""Categories whose causes are split by the user's function around them, because each function is a line to change."""


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Idle intervals of the device in time order, ns. launch: row of the call that ends each, UNKNOWN for none. track:
    track of the thread that made this call. staged: True if the call is a copy that held the CPU thread for longer than
    a launch takes. threads: for each track that ends intervals, the tracks whose events explain them, in order of
    precedence."""

    start: Int64
    end: Int64
    launch: Int32
    track: Int32
    staged: Bool
    threads: dict[int, tuple[int, ...]]

    def launched(self, events: EventTable) -> Int64:
        """Start of the call that ends each idle interval, ns, clipped to the interval."""
        before = np.where(self.end - self.start <= DISPATCH_GAP, self.start, self.end)  # a lost launch: queued, or not
        return np.clip(np.where(self.launch == UNKNOWN, before, events.start[self.launch]), self.start, self.end)

    def queued(self, events: EventTable) -> Int64:
        """End of the call that ends each idle interval, ns; without a call, the interval's own end."""
        return np.where(self.launch == UNKNOWN, self.end, np.clip(events.ends(self.launch), self.start, self.end))


@cached_per_trace
def idle_of(trace: Trace, track: int | None) -> Idle:
    """Idle time of the device over the whole recording. track: track of the training thread, None if unknown."""
    activities = device_activities(trace)
    idle = subtract(recorded_time(trace), device_time(trace).busy)
    starts = trace.events.start[activities.rows]
    after = np.searchsorted(starts, idle.end)
    launch = np.append(activities.launch, np.int32(UNKNOWN))[after]
    called = launch != UNKNOWN
    usual = UNKNOWN if track is None else track
    launches = activities.launch[activities.launch != UNKNOWN]
    if track is None and len(launches):
        usual = int(np.bincount(trace.events.track[launches]).argmax())
    tracks = np.where(called, trace.events.track[launch], usual).astype(np.int32)
    staged = called & _named(trace, launch, COPY_CALL.match) & (trace.events.duration[launch] > DISPATCH_GAP)
    family = (*autograd_tracks(trace, track), track) if track is not None else ()
    threads = {each: family if each in family else (each,) for each in unique(tracks).tolist()}
    return Idle(idle.start, idle.end, launch, tracks, staged, threads)


@cached_per_trace
def idle_claims(trace: Trace, track: int | None, input_ranges: Intervals, compile_ranges: Intervals) -> Claims:
    """Parts of the device's idle time that each category claims. track: as for `idle_of`; input_ranges, compile_ranges:
    instants that the caller knows from outside the trace."""
    idle = idle_of(trace, track)
    give_back(len(trace.events))
    explained = [_explain(trace, idle, each, input_ranges, compile_ranges) for each in idle.threads if each != UNKNOWN]
    return tuple((category, join(*(each[at] for each in explained))) for at, category in enumerate(CATEGORIES))


@cached_per_trace
def waiting_calls(trace: Trace, track: int) -> Int64:
    """Rows of a thread's runtime calls that return only when the device is done, by start: synchronizing calls, known
    by name, and copies that blocked the thread for longer than a launch takes."""
    events = trace.events
    blocking = matching(trace, COPY_CALL.match) & (events.duration > DISPATCH_GAP)
    waiting = matching(trace, SYNCHRONISATION.match) | blocking
    rows = np.flatnonzero((events.event_kind == EventKind.RUNTIME) & (events.track == track) & waiting)
    return rows[np.argsort(events.start[rows], kind="stable")]


def _explain(
    trace: Trace, idle: Idle, track: int, input_ranges: Intervals, compile_ranges: Intervals
) -> tuple[Intervals, ...]:
    """Instants of each of CATEGORIES in the idle intervals that calls on this track ended."""
    events, threads = trace.events, idle.threads[track]
    mine = idle.track == track
    start, end, staged = (each[mine] for each in (idle.start, idle.end, idle.staged))
    launched, ready = idle.launched(events)[mine], idle.queued(events)
    unrecorded = idle.end - ready > DISPATCH_GAP
    unrecorded &= mine
    inside = union(start, end)
    waits = np.concatenate([waiting_calls(trace, each) for each in threads])
    later = start < events.start[device_activities(trace).rows].max(initial=0)  # else nothing was there to be launched
    drained = contains(during(trace, waits), start) & later
    calling = (operator_events(trace) | (events.event_kind == EventKind.RUNTIME)) & np.isin(events.track, threads)
    calls = during(trace, calling, bridged)
    queued = (launched <= start) & (end - start <= DISPATCH_GAP) & ~staged  # the device's own pause between kernels
    waiting = join(
        union(start[drained], launched[drained]),
        union(launched[staged], end[staged]),
        intersect(union(start[~queued], end[~queued]), during(trace, waits[events.duration[waits] > DISPATCH_GAP])),
    )
    return (
        join(union(ready[unrecorded], idle.end[unrecorded]), _waits_for_nothing(trace, idle, waits)),
        intersect(inside, join(*(input_time(trace, each) for each in threads), input_ranges)),
        waiting,
        intersect(inside, join(*(compile_time(trace, each) for each in threads), compile_ranges)),
        intersect(inside, join(calls, union(launched, end))),
        intersect(inside, _python_time(trace, threads[-1])),
    )


def _waits_for_nothing(trace: Trace, idle: Idle, waits: Int64) -> Intervals:
    """Idle time in calls that waited although the trace shows no work on the device: work from before the recording, or
    work that was lost. waits: rows of `waiting_calls`."""
    events = trace.events
    calls = waits[matching(trace, SYNCHRONISATION.match)[waits] & (events.duration[waits] > LONGEST_RETURN)]
    idling = union(idle.start, idle.end)
    calls = calls[contains(idling, events.start[calls])]
    interval = np.searchsorted(idle.start, events.start[calls], side="right") - 1
    return intersect(idling, union(events.start[calls], np.minimum(events.ends(calls), idle.end[interval])))


def _python_time(trace: Trace, track: int) -> Intervals:
    """Instants at which a thread may have run Python, apart from operators and calls. With stacks: while a function is
    open; else the whole recording, if it has operators, or runtime calls and annotations. Marks alone are not
    enough."""
    kinds = trace.events.event_kind
    mine = trace.events.track == track
    functions = mine & (kinds == EventKind.PYTHON)
    if functions.any():
        return during(trace, functions)
    calls = (mine & (kinds == EventKind.RUNTIME)).any() and (mine & (kinds == EventKind.ANNOTATION)).any()
    return recorded_time(trace) if calls or (mine & (kinds == EventKind.OPERATOR)).any() else EMPTY


AT_ONCE = 1 << 16
"""Pieces of idle time that are explained in one batch. The intervals of their threads take ten times as much memory."""
NO_FUNCTIONS = np.empty((0, 4), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class IdleGaps:
    """Pieces of device-idle time of one category each, in time order; all columns of one length, read-only.

    start, end: ns. step: index of the window. category: a `Category` from UNRECORDED on. launch: row of the call that
    ends the interval; track: track of the thread that made it. wait: row of the call that waited, for a piece of SYNC.
    cause: row of the event that held that thread for most of the piece: an operator, a runtime call, an annotation or a
    Python function. inside: row of the innermost such event, whatever the category (what the loader was doing). A row
    is UNKNOWN if there is none. functions: (n, 4): index of a piece, number of a Python function's name, ns for which
    the function, callees included, held the thread in that piece, and one of its rows."""

    start: Int64
    end: Int64
    step: Int32
    category: Int32
    launch: Int32
    track: Int32
    wait: Int32
    cause: Int32
    inside: Int32
    functions: Int64

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Int64:
        """Length of each piece, ns."""
        return self.end - self.start


@cached_per_trace
def gaps_of(steps: StepContext) -> IdleGaps:
    """Idle time of the device in the steps, in pieces of one category. In each step the pieces sum to the breakdown's
    entries from UNRECORDED on, to the nanosecond."""
    trace, busy = steps.trace, device_time(steps.trace).busy
    idle = idle_of(trace, steps.track)
    claims = idle_claims(trace, steps.track, steps.input, steps.compiling)
    start, end, step, category = pieces_of(steps.windows, busy, claims)
    gap = np.searchsorted(idle.start, start, side="right") - 1
    gap[(gap < 0) | (start >= np.append(idle.end, 0)[gap])] = UNKNOWN
    track, launch = (np.append(column, np.int32(UNKNOWN))[gap] for column in (idle.track, idle.launch))
    wait = _waits(trace, idle, np.append(idle.start, 0)[gap], start, track)
    wait = np.where((wait == UNKNOWN) & np.append(idle.staged, False)[gap], launch, wait)
    wait = np.where(category == Category.SYNC, wait, UNKNOWN)
    nothing = np.full(len(gap), UNKNOWN, np.int32)
    found = IdleGaps(
        start,
        end,
        step=step,
        category=category.astype(np.int32),
        launch=launch.astype(np.int32),
        track=track.astype(np.int32),
        wait=wait.astype(np.int32),
        cause=nothing,
        inside=nothing.copy(),
        functions=NO_FUNCTIONS,
    )
    return replace(found, functions=_find_causes(trace, steps.links, idle, found))


def pieces_of(windows: Int64, busy: Intervals, claims: Claims) -> tuple[Int64, Int64, Int32, Int8]:
    """Time of the windows outside `busy`, in pieces (start, end, step, category). Each instant goes to the first claim
    that holds it. windows: (n, 2), ns, disjoint; processed in batches, which bounds the memory."""
    found = [_pieces_of(windows[:0], EMPTY, ())]
    at_once = max(1, len(windows) * PIECE // max(len(busy), 1))
    for first in range(0, len(windows), at_once):
        some = windows[first : first + at_once]
        near = [(category, _near(held, some)) for category, held in claims]
        start, end, step, category = _pieces_of(some, _near(busy, some), tuple(near))
        found.append((start, end, step + np.int32(first), category))
    start, end, step, category = (np.concatenate(column) for column in zip(*found, strict=True))
    return start, end, step, category


def _near(held: Intervals, windows: Int64) -> Intervals:
    """Intervals that overlap the span of some windows."""
    first = np.searchsorted(held.end, windows[0, 0], side="right")
    last = np.searchsorted(held.start, windows[-1, 1])
    return Intervals(held.start[first:last], held.end[first:last])


def _pieces_of(windows: Int64, busy: Intervals, claims: Claims) -> tuple[Int64, Int64, Int32, Int8]:
    idle = subtract(union(windows[:, 0], windows[:, 1]), busy)
    sides = [side for each in (idle, *(held for _, held in claims)) for side in (each.start, each.end)]
    boundaries = instants(windows.ravel(), *sides)
    heads, tails = boundaries[:-1], boundaries[1:]
    inside = contains(idle, heads)
    heads, tails = heads[inside], tails[inside]
    category = np.full(len(heads), Category.UNEXPLAINED, np.int8)
    for name, each in reversed(claims):
        category[contains(each, heads)] = name
    step = (np.searchsorted(windows[:, 0], heads, side="right") - 1).astype(np.int32)
    whole = np.append(True, (heads[1:] != tails[:-1]) | (np.diff(category) != 0) | (np.diff(step) != 0))[: len(heads)]
    first = np.flatnonzero(whole)
    last = np.flatnonzero(np.append(whole[1:], len(whole) > 0))
    return heads[first], tails[last], step[first], category[first]


def _waits(trace: Trace, idle: Idle, drained: Int64, start: Int64, track: Int32) -> Int64:
    """Row of the call in which the CPU waited when the device ran dry, else when the piece starts, for each piece;
    UNKNOWN if it did not wait. drained: start of the idle interval around each piece, ns."""
    events = trace.events
    found = np.full(len(start), UNKNOWN)
    for ending, threads in idle.threads.items():
        for thread in threads if ending != UNKNOWN else ():
            calls = waiting_calls(trace, thread)
            for times in (start, drained):
                call = np.append(calls, UNKNOWN)[np.searchsorted(events.start[calls], times, side="right") - 1]
                waited = (track == ending) & (call != UNKNOWN) & (times < events.ends(call))
                found = np.where(waited, call, found)
    return found


def _find_causes(trace: Trace, links: Links, idle: Idle, pieces: IdleGaps) -> Int64:
    """Writes the columns `cause` and `inside` of the pieces, and returns their `functions`. Candidates depend on the
    category: for Python, the cause is the most specific function that held nearly all of the piece, including
    callees."""
    functions = [NO_FUNCTIONS]
    waited = pieces.wait != UNKNOWN
    pieces.cause[waited] = outermost_operator(trace, links, pieces.wait[waited])
    looked_for = np.isin(pieces.category, [*STANDING_FOR, Category.PYTHON])
    for tracks in sorted(set(idle.threads.values())):
        ending = [track for track, explaining in idle.threads.items() if explaining == tracks and track != UNKNOWN]
        chosen = np.flatnonzero(looked_for & np.isin(pieces.track, ending))
        for first in range(0, len(chosen), AT_ONCE):
            functions.append(_find_in_threads(trace, links, pieces, chosen[first : first + AT_ONCE], tracks))
            give_back(len(trace.events))
    return np.concatenate(functions)


def _find_in_threads(trace: Trace, links: Links, pieces: IdleGaps, chosen: Int64, tracks: tuple[int, ...]) -> Int64:
    """Does the same for some of the pieces, in order, from what the threads that explain them were doing."""
    looked_at = union(pieces.start[chosen], pieces.end[chosen])
    threads = [_thread_on(trace, each, looked_at) for each in tracks]
    piece, owner, spent = _held_by(pieces.start[chosen], pieces.end[chosen], threads)
    held = _functions_of(trace, piece, owner, spent)
    category, behind = pieces.category[chosen][piece], owner.copy()
    for each, standing_for in STANDING_FOR.items():
        behind[category == each] = standing_for(trace, links, owner[category == each])
    own = _most_specific(trace, held, pieces.duration[chosen])
    heaviest = _heaviest(piece, behind, spent, len(chosen))
    alone = np.bincount(piece, np.where(behind == heaviest[piece], spent, 0), len(chosen))
    several = alone < NEARLY_ALL * pieces.duration[chosen]
    by_function = (pieces.category[chosen] == Category.PYTHON) & (own != UNKNOWN) & several
    pieces.cause[chosen] = np.where(by_function, own, heaviest)
    pieces.inside[chosen] = _heaviest(piece, owner, spent, len(chosen))
    found: Int64 = np.stack((chosen[held[0]], *held[1:]), axis=1)
    return found


def _is_function(name: str) -> bool:
    return FRAME.match(name) is not None and not name.startswith("torch/")


def _functions_of(trace: Trace, piece: Int32, owner: Int32, spent: Int64) -> tuple[Numbers, Int64, Int64, Int64]:
    """Time that Python functions held pieces, including callees: (number of the piece, name of the function, ns, one of
    its rows), sorted by piece and name. piece, owner, spent: as `_held_by` returns them."""
    forest, nothing = host_forest(trace), np.empty(0, np.int64)
    if not (trace.events.event_kind == EventKind.PYTHON).any():
        return nothing, nothing, nothing, nothing
    functions = (trace.events.event_kind == EventKind.PYTHON) & matching(trace, _is_function) & ~running_before(trace)
    at = forest.nearest(functions)[owner].astype(np.int64)
    if not (at != UNKNOWN).any():
        return nothing, nothing, nothing, nothing
    around, interval, levels = forest.enclosing(functions), np.arange(len(owner)), []
    while (known := at != UNKNOWN).any():
        interval, at = interval[known], at[known]
        levels.append((interval, at))
        at = around[at].astype(np.int64)
    interval, row = (np.concatenate(column) for column in zip(*levels, strict=True))
    name = trace.events.name[row].astype(np.int64)
    once_each, _ = distinct(interval, name)  # a recursion holds it once
    interval, name, row = interval[once_each], name[once_each], row[once_each]
    first, number = distinct(piece[interval], name)
    held = np.bincount(number, spent[interval], len(first)).astype(np.int64)
    return piece[interval[first]], name[first], held, row[first]


def _most_specific(trace: Trace, held: tuple[Numbers, Int64, Int64, Int64], duration: Int64) -> Int64:
    """Row of the most specific function that held nearly all of each piece, UNKNOWN for none. It is the one with the
    least time, since an enclosing function holds no less and says less. held: as `_functions_of` returns it."""
    found = np.full(len(duration), UNKNOWN, np.int64)
    piece, _, spent, row = held
    most = np.flatnonzero(spent >= NEARLY_ALL * duration[piece])
    most = most[np.lexsort((trace.events.start[row[most]], -spent[most]))]  # of equals the one that began last
    found[piece[most]] = row[most]
    return found


def _thread_on(trace: Trace, track: int, pieces: Intervals) -> CallTree:
    """Call tree of the events on a CPU track that overlap the pieces, without the profiler's own step ranges. Only
    these are nested, since every event that is open in a piece overlaps it. Events may outlast their parents here."""
    events = trace.events
    found, marks, host = [np.empty(0, np.int32)], of_symbols(trace, STEP.match), host_events(trace)
    for first in range(0, len(events), PIECE):
        part = slice(first, first + PIECE)
        mine = np.flatnonzero(host[part] & (events.track[part] == track)).astype(np.int32) + np.int32(first)
        mine = mine[~marks[events.name[mine]]]
        found.append(mine[touching(pieces, events.start[mine], events.ends(mine))])
    rows = np.concatenate(found)
    rows = rows[nesting_order(events.start[rows], events.duration[rows])]
    start, end = events.start[rows], events.ends(rows)
    return CallTree(rows, enclosing(start, end), start, end)


def _held_by(start: Int64, end: Int64, threads: list[CallTree]) -> tuple[Int32, Int32, Int64]:
    """Events that held the threads in pieces of time, interval by interval: (number of the piece, row of the event,
    ns). Intervals without an event are left out.

    start, end: of the pieces, ns, disjoint and in time order. threads: trees of the threads that explain the pieces; a
    later one counts only while the earlier ones are idle."""
    pieces = union(start, end)
    sides = (column for each in threads for column in (each.start, each.end))
    times = instants(start, *(column[contains(pieces, column)] for column in sides))
    first = np.searchsorted(times, start)
    count = np.searchsorted(times, end) - first
    piece = np.repeat(np.arange(len(start), dtype=np.int32), count)
    heads = times[np.arange(len(piece)) + np.repeat(first - (np.cumsum(count) - count), count)]
    tails = np.minimum(np.append(heads[1:], end[-1]), end[piece])
    owner = np.full(len(heads), UNKNOWN, np.int32)
    for each in threads:
        free = np.flatnonzero(owner == UNKNOWN)
        inner = innermost_at(each, heads[free])
        open_now = inner != ROOT
        owner[free[open_now]] = each.rows[inner[open_now]]
    known = owner != UNKNOWN
    return piece[known], owner[known], (tails - heads)[known]


def _heaviest(piece: Int32, cause: Int32, weight: Int64, count: int) -> Int64:
    """For each of `count` pieces the cause with the largest sum of weights, UNKNOWN for none."""
    found = np.full(count, UNKNOWN, np.int64)
    if not len(piece):
        return found
    order = np.lexsort((cause, piece))
    piece, cause, weight = piece[order], cause[order], weight[order]
    heads = np.flatnonzero(np.append(True, (np.diff(piece) != 0) | (np.diff(cause) != 0)))
    lightest_first = heads[np.argsort(np.add.reduceat(weight, heads), kind="stable")]
    found[piece[lightest_first]] = cause[lightest_first]
    return found


def _causes_while_launching(trace: Trace, links: Links, rows: Int64) -> Int64:
    """Row that names the work of a launching thread in each event: a call that allocates; else the innermost operator,
    or torch's range around it that lays out data for communication. Else the annotation, Python function or event
    itself."""
    calls = trace.events.event_kind[rows] == EventKind.RUNTIME
    operator, annotation = _in_library(trace, links.operator[rows].astype(np.int64)), links.annotation[rows]
    alone = (calls & _named(trace, rows, ALLOCATION.match)) | (operator == UNKNOWN)
    outside = np.where(annotation != UNKNOWN, annotation, links.function[rows])
    return np.where(alone, np.where(calls | (outside == UNKNOWN), rows, outside), operator)


def _causes_while_compiling(trace: Trace, links: Links, rows: Int64) -> Int64:
    """Row that names what compiles: the annotation around each event, else the event itself."""
    return np.where(links.annotation[rows] == UNKNOWN, rows, links.annotation[rows])


def _causes_of_input(trace: Trace, links: Links, rows: Int64) -> Int64:
    """Row that names a wait for input: the loader's annotation, else the user's function, else the event itself."""
    annotation, function = links.annotation[rows], links.function[rows]
    loading = (annotation != UNKNOWN) & _named(trace, annotation, LOADER.match)
    return np.where(loading, annotation, np.where(function != UNKNOWN, function, rows))


STANDING_FOR = {
    Category.INPUT: _causes_of_input,
    Category.COMPILE: _causes_while_compiling,
    Category.OVERHEAD: _causes_while_launching,
}
"""Function by category that replaces the event which held the thread by the row that names it (not for PYTHON)."""


def _named(trace: Trace, rows: Int32 | Int64, test: Callable[[str], object]) -> Bool:
    """True for each row whose name passes the test."""
    return of_symbols(trace, test)[trace.events.name[rows]]


def outermost_operator(trace: Trace, links: Links, rows: Int64) -> Int64:
    """Row of the outermost operator around each row (aten::to, not the aten::copy_ inside it), below autograd's frames
    and the user's ranges. Else torch's range that lays out data for communication, else the row itself."""
    found = np.where(links.operator[rows] == UNKNOWN, rows, links.operator[rows])
    while True:
        above = links.parent[found]
        climbing = (above != UNKNOWN) & _named(trace, above, _is_rooted)
        if not climbing.any():
            return _in_library(trace, found.astype(np.int64))
        found = np.where(climbing, above, found)


def _is_rooted(name: str) -> bool:
    return name.startswith("aten::") and not is_engine(name)


def _in_library(trace: Trace, rows: Int64) -> Int64:
    """Row of torch's range around each row that lays out data for communication; without one, the row itself."""
    ranges = matching(trace, LIBRARY_COPIES.match)
    if not ranges.any():
        return rows
    around = host_forest(trace).around(np.maximum(rows, 0), ranges, itself=True)
    return np.where((rows == UNKNOWN) | (around == UNKNOWN), rows, around)


@dataclass(frozen=True, slots=True, eq=False)
class GapTotal:
    """Idle time of one category and cause ("" if the trace shows none). duration: ns in each step, (n,); count: number
    of pieces in each step, (n,); longest: ns of the longest piece. source: start of the user's function with most of
    the time; for input, inside the loader if known. inside: for input, the event in which the loader spent most of the
    time ("" if unknown). functions: for Python, (function, ns including callees) of those with more than a tenth of the
    time, longest first, without torch's own."""

    category: Category
    cause: str
    duration: Int64
    count: Int64
    longest: int
    source: SourceLine | None
    inside: str = ""
    functions: tuple[tuple[str, int], ...] = ()


def gap_totals(steps: StepContext, gaps: IdleGaps) -> tuple[GapTotal, ...]:
    """Idle time by category and cause, the longest first. The totals of a category sum to the breakdown's entry of each
    step. gaps: pieces of these steps."""
    trace, links = steps.trace, steps.links
    names = np.where(gaps.cause == UNKNOWN, UNKNOWN, trace.events.name[gaps.cause])
    function = np.where(gaps.cause == UNKNOWN, UNKNOWN, links.function[gaps.cause])
    line = np.where(function == UNKNOWN, UNKNOWN, trace.events.name[function])
    behind = np.where(gaps.category == Category.INPUT, gaps.inside, gaps.cause)
    totals = []
    for chosen in grouped(gaps.category, names, np.where(np.isin(gaps.category, BY_LINE), line, UNKNOWN)):
        first, step, duration = chosen[0], gaps.step[chosen], gaps.duration[chosen]
        totals.append(
            GapTotal(
                category=Category(int(gaps.category[first])),
                cause="" if names[first] == UNKNOWN else trace.symbols[names[first]],
                duration=per_step(step, duration, len(steps)),
                count=per_step(step, 1, len(steps)),
                longest=int(duration.max()),
                source=source_of(trace, links, behind[chosen], duration),
                inside=_inside(trace, gaps, chosen) if gaps.category[first] == Category.INPUT else "",
                functions=_functions_in(trace, gaps, chosen) if gaps.category[first] == Category.PYTHON else (),
            )
        )
    return tuple(sorted(totals, key=lambda each: (-int(each.duration.sum()), each.category, each.cause)))


def _functions_in(trace: Trace, gaps: IdleGaps, chosen: Int64) -> tuple[tuple[str, int], ...]:
    """Value of `GapTotal.functions`. chosen: numbers of pieces."""
    events, wanted = trace.events, np.zeros(len(gaps), np.bool_)
    wanted[chosen] = True
    mine = gaps.functions[wanted[gaps.functions[:, 0]]]
    first, number = distinct(mine[:, 1])
    totals = np.bincount(number, mine[:, 2], len(first)).astype(np.int64)
    order = np.lexsort((first, -totals))  # of equals the one that was met first
    order = order[WORTH_A_NAME * totals[order] > int(gaps.duration[chosen].sum())]
    worth = mine[first[order], 1].tolist()
    spent = dict(zip(worth, totals[order].tolist(), strict=True))
    row = dict(zip(worth, mine[first[order], 3].tolist(), strict=True))

    def only_calls(name: int) -> bool:
        start, end = events.start[row[name]], events.ends(row[name])
        return any(
            other != name
            and spent[other] >= NEARLY_ALL * spent[name]
            and start <= events.start[row[other]]
            and events.ends(row[other]) <= end
            and row[other] != row[name]
            for other in worth
        )

    return tuple((trace.symbols[name], spent[name]) for name in worth if not only_calls(name))


def _inside(trace: Trace, gaps: IdleGaps, chosen: Int64) -> str:
    """Name of the event that held more than half of these pieces' time; "" if none did, or if it is their cause."""
    known = chosen[(gaps.inside[chosen] != UNKNOWN) & (gaps.inside[chosen] != gaps.cause[chosen])]
    if not len(known):
        return ""
    names = trace.events.name[gaps.inside[known]]
    spent = np.bincount(names, gaps.duration[known])
    return trace.symbols[int(spent.argmax())] if spent.max() > gaps.duration[chosen].sum() / 2 else ""
