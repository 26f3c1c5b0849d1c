"""Idle stretches of the device and what the threads that end them were doing.

An idle stretch ends with a device activity, which a thread of the host launched; what that thread was doing explains
the stretch. Autograd's engine works for the training thread, which waits meanwhile: what one ends, both explain.
What nothing in the trace launched, and the idle time at the very end, is explained by the training thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steptime.analysis.categories import Category
from steptime.analysis.device_activity import Activities, device_activities, device_time
from steptime.analysis.operators import DISPATCH_GAP, grouped, operator_events, per_step, short_gaps, source_of
from steptime.analysis.processor import Claims
from steptime.analysis.threads import autograd_lanes, compile_time, input_time, recorded_time, training_lane
from steptime.arrays import Bool, Int32, Int64
from steptime.intervals import EMPTY, Intervals, contains, instants, intersect, join, subtract, union
from steptime.quantities import SourceLine
from steptime.trace.cached_per_trace import once
from steptime.trace.links import UNKNOWN, Links, host_forest
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import ALLOCATION, COPY_CALL, LOADER, STEP, SYNCHRONISATION, is_engine, matching, of_symbols


@dataclass(frozen=True, slots=True, eq=False)
class Thread:
    """The events of one thread, parents before children. rows: of the table. parent: position in these columns, UNKNOWN
    for none. begin, end: ns."""

    rows: Int32
    parent: Int32
    begin: Int64
    end: Int64

    def innermost_at(self, times: Int64) -> Int64:
        """The row of the innermost event at each time, UNKNOWN where none is open."""
        at = np.searchsorted(self.begin, times, side="right") - 1
        walking = np.flatnonzero(at != UNKNOWN)
        while len(walking):
            walking = walking[self.end[at[walking]] <= times[walking]]
            at[walking] = self.parent[at[walking]]
            walking = walking[at[walking] != UNKNOWN]
        return np.where(at == UNKNOWN, UNKNOWN, self.rows[at]) if len(self.rows) else at


@once
def thread_on(trace: Trace, lane: int) -> Thread:
    """What happened on a lane of the host, the profiler's own ranges of steps left out."""
    events, forest = trace.events, host_forest(trace)
    first, last = np.searchsorted(events.lane[forest.rows], (lane, lane + 1))  # a forest goes by lanes
    rows = forest.rows[first:last]
    parent = np.where(forest.parent[first:last] == UNKNOWN, UNKNOWN, forest.parent[first:last] - first).astype(np.int32)
    begin, end = events.begin[rows], events.end[rows]
    kept = ~of_symbols(trace, STEP.match)[events.name[rows]] if len(rows) else np.empty(0, np.bool_)
    while True:  # around a range of a step that was left out, or that had ended before, lies what was around it
        wrong = np.flatnonzero(parent != UNKNOWN)
        wrong = wrong[~kept[parent[wrong]] | (end[parent[wrong]] <= begin[wrong])]
        if not len(wrong):
            break
        parent[wrong] = parent[parent[wrong]]
    if kept.all():
        return Thread(rows, parent, begin, end)
    position = np.cumsum(kept, dtype=np.int32) - 1
    moved = np.where(parent == UNKNOWN, UNKNOWN, position[parent]).astype(np.int32)
    return Thread(rows[kept], moved[kept], begin[kept], end[kept])


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Stretches of time in which one event held a thread. piece: number of the piece of time that each is of; owner:
    row of the event; duration: ns."""

    piece: Int64
    owner: Int64
    duration: Int64


def held_by(begin: Int64, end: Int64, threads: tuple[Thread, ...]) -> Held:
    """What held the threads in pieces of time, stretch by stretch; stretches in which nothing did are left out.

    begin, end: ns, disjoint and in time order. threads: that explain the pieces; a later one counts where the earlier
    ones did nothing.
    """
    if not len(begin):
        nothing = np.empty(0, np.int64)
        return Held(nothing, nothing, nothing)
    pieces = union(begin, end)
    sides = (column for each in threads for column in (each.begin, each.end))
    times = instants(begin, *(column[contains(pieces, column)] for column in sides))
    first = np.searchsorted(times, begin)
    count = np.searchsorted(times, end) - first
    piece = np.repeat(np.arange(len(begin)), count)
    heads = times[np.arange(len(piece)) + np.repeat(first - (np.cumsum(count) - count), count)]
    tails = np.minimum(np.append(heads[1:], end[-1]), end[piece])
    owner = np.full(len(heads), UNKNOWN, np.int64)
    for each in threads:
        free = np.flatnonzero(owner == UNKNOWN)
        owner[free] = each.innermost_at(heads[free])
    known = owner != UNKNOWN
    return Held(piece[known], owner[known], (tails - heads)[known])


def causes_while_launching(trace: Trace, links: Links, rows: Int64) -> Int64:
    """What a thread that launches is said to be at while an event holds it: a call that allocates, else the innermost
    operator, else the runtime call, annotation or Python function itself. rows: the events."""
    events = trace.events
    calls = events.event_kind[rows] == EventKind.RUNTIME
    operator, annotation = links.operator[rows], links.annotation[rows]
    alone = (calls & _named(trace, rows, ALLOCATION.match)) | (operator == UNKNOWN)
    outside = np.where(annotation != UNKNOWN, annotation, links.function[rows])
    return np.where(alone, np.where(calls | (outside == UNKNOWN), rows, outside), operator)


def causes_while_compiling(trace: Trace, links: Links, rows: Int64) -> Int64:
    """What is said to compile: the annotation, else the event itself."""
    return np.where(links.annotation[rows] == UNKNOWN, rows, links.annotation[rows])


def causes_of_input(trace: Trace, links: Links, rows: Int64) -> Int64:
    """What holds up the input: the loader, else the user's function, else the event itself."""
    annotation, function = links.annotation[rows], links.function[rows]
    loading = (annotation != UNKNOWN) & _named(trace, annotation, LOADER.match)
    return np.where(loading, annotation, np.where(function != UNKNOWN, function, rows))


def _named(trace: Trace, rows: Int32 | Int64, test: Callable[[str], object]) -> Bool:
    """Which of the events have a name that passes the test."""
    return of_symbols(trace, test)[trace.events.name[rows]]


def outermost_operator(trace: Trace, links: Links, rows: Int64) -> Int64:
    """The outermost operator around each row (aten::to, not the aten::copy_ inside it) below autograd's frames and the
    user's ranges; the row itself without one."""
    found = np.where(links.operator[rows] == UNKNOWN, rows, links.operator[rows])
    while True:
        above = links.parent[found]
        climbing = (above != UNKNOWN) & _named(trace, above, _is_rooted)
        if not climbing.any():
            return found.astype(np.int64)
        found = np.where(climbing, above, found)


def _is_rooted(name: str) -> bool:
    return name.startswith("aten::") and not is_engine(name)


def heaviest(piece: Int64, cause: Int64, weight: Int64, count: int) -> Int64:
    """For each of `count` pieces the cause with the largest sum of weights, UNKNOWN for none."""
    found = np.full(count, UNKNOWN, np.int64)
    if not len(piece):
        return found
    order = np.lexsort((cause, piece))
    piece, cause, weight = piece[order], cause[order], weight[order]
    heads = np.flatnonzero(np.append(True, (np.diff(piece) != 0) | (np.diff(cause) != 0)))
    sums = np.add.reduceat(weight, heads)
    lightest_first = np.argsort(sums, kind="stable")
    found[piece[heads][lightest_first]] = cause[heads][lightest_first]
    return found


CATEGORIES = (Category.INPUT, Category.SYNC, Category.COMPILE, Category.OVERHEAD, Category.PYTHON)


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Idle stretches in time order, ns. launch: row of the call that ends each, UNKNOWN for none; launched: when it
    began. lane: of the thread that ends it. staged: that call is a copy which held the host for longer than launching
    takes. threads: by lane, the lanes that explain what it ends, those whose word counts first first.
    """

    begin: Int64
    end: Int64
    launch: Int64
    launched: Int64
    lane: Int64
    staged: Bool
    threads: dict[int, tuple[int, ...]]


@once
def idle_of(trace: Trace, busy: Intervals, lane: int | None) -> Idle:
    """All idle time of the recording. lane: the training thread's."""
    activities = device_activities(trace)
    idle = subtract(recorded_time(trace), busy)
    begins = trace.events.begin[activities.rows]
    after = np.searchsorted(begins, idle.end)
    known = after < len(begins)
    launch = np.where(known, activities.launch[np.minimum(after, len(begins) - 1)], UNKNOWN)
    called = launch != UNKNOWN
    lanes = np.where(called, trace.events.lane[launch], _usual_launcher(trace, activities, lane))
    before = np.where(idle.end - idle.begin <= DISPATCH_GAP, idle.begin, idle.end)  # a lost launch: queued, or not
    launched = np.clip(np.where(called, trace.events.begin[launch], before), idle.begin, idle.end)
    staged = called & matching(trace, COPY_CALL.match)[launch] & (trace.events.duration[launch] > DISPATCH_GAP)
    family = (*autograd_lanes(trace, lane), lane) if lane is not None else ()
    threads = {each: family if each in family else (each,) for each in np.unique(lanes).tolist()}
    return Idle(idle.begin, idle.end, launch, launched, lanes, staged, threads)


@once
def idle_claims(trace: Trace, idle: Idle, input_ranges: Intervals, compile_ranges: Intervals) -> Claims:
    """Who claims the idle time. The categories may overlap: their order decides."""
    explained = [_explain(trace, idle, lane, input_ranges, compile_ranges) for lane in idle.threads if lane != UNKNOWN]
    return tuple((category, join(*(each[category] for each in explained))) for category in CATEGORIES)


@once
def waiting_calls(trace: Trace, lane: int) -> Int64:
    """Rows of the runtime calls of a lane that return when the device is done, by begin: those that do by their name,
    and copies that held the host for longer than launching takes."""
    events = trace.events
    blocking = matching(trace, COPY_CALL.match) & (events.duration > DISPATCH_GAP)
    waiting = matching(trace, SYNCHRONISATION.match) | blocking
    rows = np.flatnonzero((events.event_kind == EventKind.RUNTIME) & (events.lane == lane) & waiting)
    return rows[np.argsort(events.begin[rows], kind="stable")]


def _usual_launcher(trace: Trace, activities: Activities, lane: int | None) -> int:
    if lane is not None:
        return lane
    launched = activities.launch[activities.launch != UNKNOWN]
    return int(np.bincount(trace.events.lane[launched]).argmax()) if len(launched) else UNKNOWN


def _explain(
    trace: Trace, idle: Idle, lane: int, input_ranges: Intervals, compile_ranges: Intervals
) -> dict[Category, Intervals]:
    """What was done in the stretches that the thread on `lane` ended."""
    mine, threads = idle.lane == lane, idle.threads[lane]
    begin, end, launched = idle.begin[mine], idle.end[mine], idle.launched[mine]
    inside = union(begin, end)
    drained = contains(join(*(_waiting(trace, each) for each in threads)), begin)
    calls = join(*(_calls(trace, each) for each in threads))
    dispatching = join(calls, short_gaps(calls), union(launched, end))
    staged = idle.staged[mine]
    queued = (launched <= begin) & (end - begin <= DISPATCH_GAP) & ~staged  # the device's own pause between kernels
    waiting = join(
        union(begin[drained], launched[drained]),
        union(launched[staged], end[staged]),
        intersect(union(begin[~queued], end[~queued]), join(*(_long_waits(trace, each) for each in threads))),
    )
    return {
        Category.INPUT: intersect(inside, join(*(input_time(trace, each) for each in threads), input_ranges)),
        Category.SYNC: waiting,
        Category.COMPILE: intersect(inside, join(*(compile_time(trace, each) for each in threads), compile_ranges)),
        Category.OVERHEAD: intersect(inside, dispatching),
        Category.PYTHON: inside,
    }


def _waiting(trace: Trace, lane: int) -> Intervals:
    rows = waiting_calls(trace, lane)
    return union(trace.events.begin[rows], trace.events.end[rows])


def _long_waits(trace: Trace, lane: int) -> Intervals:
    rows = waiting_calls(trace, lane)
    rows = rows[trace.events.duration[rows] > DISPATCH_GAP]
    return union(trace.events.begin[rows], trace.events.end[rows])


def _calls(trace: Trace, lane: int) -> Intervals:
    """In operators and runtime calls."""
    events = trace.events
    chosen = (operator_events(trace) | (events.event_kind == EventKind.RUNTIME)) & (events.lane == lane)
    return union(events.begin[chosen], events.end[chosen])


STANDING_FOR = {
    Category.INPUT: causes_of_input,
    Category.COMPILE: causes_while_compiling,
    Category.OVERHEAD: causes_while_launching,
}
"""By account, what is said in place of the event that held the thread; of the host's own time it is that event."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleGaps:
    """Pieces of device-idle time of one account each, in time order; all columns int64 of one length, read-only.

    begin, end: ns. gap: number of the idle stretch that the piece is of. step: index of the window. account: an
    `Account` from INPUT on. launch: row of the call that ends the stretch. lane: of the thread that made it. wait: of
    a piece of SYNC, row of the call that waited. cause: row of the event that held that thread for most of the piece:
    an operator, a runtime call, an annotation or a Python function. inside: row of the innermost event alike, whatever
    the account: what the loader was at. Rows are UNKNOWN where there is none.
    """

    begin: Int64
    end: Int64
    gap: Int64
    step: Int64
    category: Int64
    launch: Int64
    lane: Int64
    wait: Int64
    cause: Int64
    inside: Int64

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def duration(self) -> Int64:
        """end - begin, ns."""
        return self.end - self.begin


@once
def gaps_of(
    trace: Trace,
    links: Links,
    windows: Int64,
    *,
    input_ranges: Intervals = EMPTY,
    compile_ranges: Intervals = EMPTY,
    training_thread: int | None = None,
) -> IdleGaps:
    """The idle time of the steps. windows: (n, 2) ns, the steps as the breakdown has them (`trace_steps.reach`); the
    rest as for `account.account_for`, whose entries from INPUT on these pieces sum to, step by step and to the
    nanosecond.
    """
    busy = device_time(trace).busy
    idle = idle_of(trace, busy, training_lane(trace, training_thread))
    claims = idle_claims(trace, idle, input_ranges, compile_ranges)
    begin, end, step, category = pieces_of(windows, busy, claims)
    gap = np.searchsorted(idle.begin, begin, side="right") - 1
    gap[(gap < 0) | (begin >= np.append(idle.end, 0)[gap])] = UNKNOWN
    lane, launch = (np.append(column, UNKNOWN)[gap] for column in (idle.lane, idle.launch))
    wait = _waits(trace, idle, np.append(idle.begin, 0)[gap], begin, lane)
    wait = np.where((wait == UNKNOWN) & np.append(idle.staged, False)[gap], launch, wait)
    wait = np.where(category == Category.SYNC, wait, UNKNOWN)
    nothing = np.full(len(gap), UNKNOWN)
    found = IdleGaps(begin, end, gap, step, category, launch, lane, wait, nothing, nothing.copy())
    _find_causes(trace, links, idle, found)
    return found


def pieces_of(windows: Int64, busy: Intervals, claims: Claims) -> tuple[Int64, Int64, Int64, Int64]:
    """begin, end, step and account of the windows' time outside `busy`: each instant to the first claim that holds it.
    windows: (n, 2) ns, disjoint."""
    idle = subtract(union(windows[:, 0], windows[:, 1]), busy)
    sides = [side for each in (idle, *(held for _, held in claims)) for side in (each.begin, each.end)]
    boundaries = instants(windows.ravel(), *sides)
    heads, tails = boundaries[:-1], boundaries[1:]
    inside = contains(idle, heads)
    heads, tails = heads[inside], tails[inside]
    category = np.full(len(heads), Category.UNEXPLAINED, np.int64)
    for name, each in reversed(claims):
        category[contains(each, heads)] = name
    step = np.searchsorted(windows[:, 0], heads, side="right") - 1
    whole = np.append(True, (heads[1:] != tails[:-1]) | (np.diff(category) != 0) | (np.diff(step) != 0))[: len(heads)]
    first = np.flatnonzero(whole)
    last = np.flatnonzero(np.append(whole[1:], len(whole) > 0))
    return heads[first], tails[last], step[first], category[first]


def _waits(trace: Trace, idle: Idle, drained: Int64, begin: Int64, lane: Int64) -> Int64:
    """By piece: the call in which the host waited when the device ran dry, else when the piece begins; UNKNOWN where it
    did not. drained: when the stretch of each piece began, ns."""
    events = trace.events
    found = np.full(len(begin), UNKNOWN)
    for ending, threads in idle.threads.items():
        for thread in threads if ending != UNKNOWN else ():
            calls = waiting_calls(trace, thread)
            for times in (begin, drained):
                call = np.append(calls, UNKNOWN)[np.searchsorted(events.begin[calls], times, side="right") - 1]
                waited = (lane == ending) & (call != UNKNOWN) & (times < events.end[call])
                found = np.where(waited, call, found)
    return found


def _find_causes(trace: Trace, links: Links, idle: Idle, pieces: IdleGaps) -> None:
    """Writes the event behind each piece; what the cause is looked for among depends on the account."""
    waited = pieces.wait != UNKNOWN
    pieces.cause[waited] = outermost_operator(trace, links, pieces.wait[waited])
    looked_for = np.isin(pieces.category, [*STANDING_FOR, Category.PYTHON])
    for lanes in sorted(set(idle.threads.values())):
        ending = [lane for lane, explaining in idle.threads.items() if explaining == lanes and lane != UNKNOWN]
        chosen = np.flatnonzero(looked_for & np.isin(pieces.lane, ending))
        if not len(chosen):
            continue
        held = held_by(pieces.begin[chosen], pieces.end[chosen], tuple(thread_on(trace, each) for each in lanes))
        category, behind = pieces.category[chosen][held.piece], held.owner.copy()
        for each, standing_for in STANDING_FOR.items():
            behind[category == each] = standing_for(trace, links, held.owner[category == each])
        pieces.cause[chosen] = heaviest(held.piece, behind, held.duration, len(chosen))
        pieces.inside[chosen] = heaviest(held.piece, held.owner, held.duration, len(chosen))


BY_LINE = (Category.SYNC, Category.PYTHON)


@dataclass(frozen=True, slots=True, eq=False)
class GapTotal:
    """Idle time of one account with one cause ("" where the trace shows none). duration: (n,) ns of each step; count:
    (n,) pieces; longest: ns. source: where the user's function begins that has most of it; of input, the one in the
    loader, if the trace shows one there. inside: of input, what the loader was at for most of it ("" if not known)."""

    category: Category
    cause: str
    duration: Int64
    count: Int64
    longest: int
    source: SourceLine | None
    inside: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class WaitTotal:
    """One kind of wait for the device from one place. call: of the runtime. operator: the outermost one around it
    (aten::item, aten::to), "" for none. calls: (n,) in each step; idle: (n,) ns of the device that they caused."""

    call: str
    operator: str
    calls: Int64
    idle: Int64
    source: SourceLine | None


def gap_totals(trace: Trace, links: Links, gaps: IdleGaps, steps: int) -> tuple[GapTotal, ...]:
    """The longest first. By account they sum to the breakdown's entries of each step. steps: how many there are.

    Waits and Python of one name are told apart by the user's functions around them, because each is a line to change.
    """
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
                duration=per_step(step, duration, steps),
                count=per_step(step, np.ones(len(step), np.int64), steps),
                longest=int(duration.max()),
                source=source_of(trace, links, behind[chosen], duration),
                inside=_inside(trace, gaps, chosen) if gaps.category[first] == Category.INPUT else "",
            )
        )
    return tuple(sorted(totals, key=lambda each: (-int(each.duration.sum()), each.category, each.cause)))


def wait_totals(trace: Trace, links: Links, gaps: IdleGaps, steps: int) -> tuple[WaitTotal, ...]:
    """Those that cost the device most first. Calls that begin in a step count, and what held the host beside them."""
    events = trace.events
    calls = (events.event_kind == EventKind.RUNTIME) & matching(trace, SYNCHRONISATION.match)
    rows = np.union1d(np.flatnonzero(calls), gaps.wait[gaps.wait != UNKNOWN])
    idle = np.zeros((len(rows), steps), np.int64)
    waited = gaps.wait != UNKNOWN
    np.add.at(idle, (np.searchsorted(rows, gaps.wait[waited]), gaps.step[waited]), gaps.duration[waited])
    kept = (links.step[rows] != UNKNOWN) | idle.any(axis=1)
    rows, idle = rows[kept], idle[kept]
    around = outermost_operator(trace, links, rows)
    totals = []
    for chosen in grouped(events.name[rows], events.name[around], links.function[rows]):
        first, ones = chosen[0], np.ones(len(chosen), np.int64)
        totals.append(
            WaitTotal(
                call=trace.symbols[events.name[rows[first]]],
                operator="" if around[first] == rows[first] else trace.symbols[events.name[around[first]]],
                calls=per_step(links.step[rows[chosen]], ones, steps),
                idle=idle[chosen].sum(axis=0),
                source=source_of(trace, links, rows[chosen], ones),
            )
        )
    return tuple(sorted(totals, key=lambda each: (-int(each.idle.sum()), -int(each.calls.sum()), each.call)))


def _inside(trace: Trace, gaps: IdleGaps, chosen: Int64) -> str:
    """The name of the event that held most of these pieces, "" where it is what they are called after anyway."""
    known = chosen[(gaps.inside[chosen] != UNKNOWN) & (gaps.inside[chosen] != gaps.cause[chosen])]
    if not len(known):
        return ""
    names = trace.events.name[gaps.inside[known]]
    spent = np.bincount(names, gaps.duration[known])
    return trace.symbols[int(spent.argmax())] if spent.max() > gaps.duration[chosen].sum() / 2 else ""
