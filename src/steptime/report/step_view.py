"""View of one step from a trace or a recording: what ran where and when.

Its columns are texts of numbers separated by spaces: fifty thousand events are a few strings, not 250,000 objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from steptime.analysis.breakdown import claims_of
from steptime.analysis.categories import Category
from steptime.analysis.device_activity import communication_kernels
from steptime.analysis.idle import IdleGaps, gaps_of, pieces_of
from steptime.analysis.recorded_breakdown import RecordedBreakdown
from steptime.analysis.step_context import StepContext
from steptime.analysis.timeline import Phase, Steps
from steptime.arrays import Bool, Int64, unique
from steptime.intervals import EMPTY, Intervals, clip
from steptime.journal import Kind
from steptime.quantities import SourceLine
from steptime.recording.recording import IntervalTable, Process
from steptime.trace.links import DEVICE, UNKNOWN, Links, function_name, source_line
from steptime.trace.table import ABSENT, HOST_CATEGORIES, EventKind, Trace
from steptime.trace.vendors import LOADER, SYNCHRONISATION, of_symbols


@dataclass(frozen=True, slots=True)
class ViewTrack:
    """Track of a step view: events in one place. kind: "category" (of the time), "phase", "stream", "thread" or
    "worker" (of a loader). rows: number of events in each row, from the top; events of a row do not overlap."""

    name: str
    kind: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """Name of events. kind: the category's name on a category track, else "operator", "range", "call", "python",
    "phase" or "other"."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Detail:
    """Further facts about events. operator: the operator that launched the event or called it; shapes, formats: shapes
    and dtypes of that operator's inputs; source: the user's line; note: cause, in words."""

    operator: str = ""
    shapes: str = ""
    formats: str = ""
    source: SourceLine | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class StepView:
    """View of one step. step: its number in the report's series of steps, -1 if it is in none. how: why this one, in
    words.

    length: displayed ns, from time 0. start, end: of the step itself on that scale; earlier or still running work is
    outside of them. Columns, by event, row and track: gaps (ns from the end of the previous event in the same row; of
    the first, from time 0), durations (ns), labels and details (numbers in the lists; detail 0 is empty). left_out:
    number of the step's events that are missing, the shortest ones."""

    step: int
    how: str
    length: int
    start: int
    end: int
    tracks: tuple[ViewTrack, ...]
    labels: tuple[Label, ...]
    details: tuple[Detail, ...]
    gap_column: str
    duration_column: str
    label_column: str
    detail_column: str
    left_out: int = 0

    @property
    def events(self) -> int:
        """Number of events in all tracks."""
        return sum(sum(track.rows) for track in self.tracks)


Named = TypeVar("Named", Label, Detail)
MOST_EVENTS = 50_000
"""Most events of a step view: more could not be distinguished, and would make the page too large."""
MOST_BYTES = 1_150_000
"""Approximate limit on the step view as JSON, bytes: it keeps the page below 2.5 MB."""
LONGEST = 300
"""Most characters of a name."""
MOST_ROWS = 64
"""Most rows of a track; deeper stacks are left out."""
_TRIES = 4
FIRST = np.int64(1) << 60
"""Weight above any duration in ns, for events that are kept before others."""


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """Track of a step view before it is encoded: events in any order, as columns of one length. start, end: absolute
    ns. label, detail: indices into this strip's own `labels` and `details`. first: True if its events are kept before
    those of other strips."""

    name: str
    kind: str
    start: Int64
    end: Int64
    label: Int64
    labels: tuple[Label, ...]
    detail: Int64
    details: tuple[Detail, ...]
    first: bool = True

    def __len__(self) -> int:
        return len(self.start)

    def only(self, kept: Bool) -> Strip:
        """Strip that has only the events of the mask `kept`."""
        columns = {name: getattr(self, name)[kept] for name in ("start", "end", "label", "detail")}
        return replace(self, **columns)


def assemble(
    strips: Sequence[Strip], displayed: tuple[int, int], step: tuple[int, int], number: int, how: str, left_out: int = 0
) -> StepView:
    """Step view of strips, in order. displayed, step: (start, end), absolute ns; number, how: see `StepView`; left_out:
    number of events that the strips already lack. Of too many events or bytes, the shortest are dropped."""
    count = sum(map(len, strips)) + left_out
    most = MOST_EVENTS
    for _ in range(_TRIES):
        made = _assembled(_longest(strips, most), displayed, step, number, how, count)
        size = _size(made)
        if size <= MOST_BYTES:
            break
        most = int(0.9 * made.events * MOST_BYTES / size)
    return made


def rows_of(start: Int64, end: Int64) -> Int64:
    """Row number of each event: the first free one, or MOST_ROWS if none is free. Events are in order of start and then
    falling length. A callee is below its caller; overlapping kernels of a stream get further rows."""
    rows = np.empty(len(start), np.int64)
    ends: list[int] = []
    for index, (starts, stops) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        row = next((row for row, last in enumerate(ends) if last <= starts), len(ends))
        rows[index] = row
        if row == MOST_ROWS:
            continue
        if row == len(ends):
            ends.append(stops)
        else:
            ends[row] = stops
    return rows


def text(name: str) -> str:
    """Name cut to LONGEST characters."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _longest(strips: Sequence[Strip], most: int) -> list[Strip]:
    """Strips cut to at most `most` events: those of `first` strips before others, longer before shorter."""
    if sum(map(len, strips)) <= most:
        return list(strips)
    weights = [each.end - each.start + FIRST * each.first for each in strips]
    joined = np.concatenate(weights)
    kept = np.zeros(len(joined), np.bool_)
    kept[np.argsort(-joined, kind="stable")[: max(most, 1)]] = True
    boundaries = np.cumsum([0, *map(len, strips)])
    return [each.only(kept[boundaries[at] : boundaries[at + 1]]) for at, each in enumerate(strips)]


def _assembled(
    strips: Sequence[Strip], displayed: tuple[int, int], step: tuple[int, int], number: int, how: str, count: int
) -> StepView:
    labels: dict[Label, int] = {}
    details: dict[Detail, int] = {Detail(): 0}
    laid = [_Laid(each, displayed[0], labels, details) for each in strips if len(each)]
    columns = [" ".join(part for each in laid for part in each.columns[at]) for at in range(4)]
    return StepView(
        step=number,
        how=how,
        length=displayed[1] - displayed[0],
        start=step[0] - displayed[0],
        end=step[1] - displayed[0],
        tracks=tuple(each.track for each in laid),
        labels=tuple(labels),
        details=tuple(details),
        gap_column=columns[0],
        duration_column=columns[1],
        label_column=columns[2],
        detail_column=columns[3],
        left_out=count - sum(sum(each.track.rows) for each in laid),
    )


class _Laid:
    """Strip laid out in rows. labels, details: pools of the whole step view, which grow."""

    def __init__(self, strip: Strip, zero: int, labels: dict[Label, int], details: dict[Detail, int]) -> None:
        order = np.lexsort((-strip.end, strip.start))
        start, end = strip.start[order] - zero, strip.end[order] - zero
        row = rows_of(start, end)
        by_row = np.argsort(row, kind="stable")
        by_row = by_row[row[by_row] < MOST_ROWS]
        row, start, end = row[by_row], start[by_row], end[by_row]
        before = np.concatenate(([0], end[:-1]))
        before[np.flatnonzero(np.diff(row, prepend=-1))] = 0
        label = _pooled(strip.label[order][by_row], strip.labels, labels)
        detail = _pooled(strip.detail[order][by_row], strip.details, details)
        self.track = ViewTrack(strip.name, strip.kind, tuple(np.bincount(row).tolist()))
        self.columns = [map(str, each.tolist()) for each in (start - before, end - start, label, detail)]


def _pooled(numbers: Int64, own: Sequence[Named], pool: dict[Named, int]) -> Int64:
    """Numbers in the pool instead of the strip's own; the pool gets what is used."""
    places = np.zeros(len(own), np.int64)
    for number in unique(numbers).tolist():
        places[number] = pool.setdefault(own[number], len(pool))
    return places[numbers]


def _size(step_view: StepView) -> int:
    """Approximate bytes as JSON."""
    columns = (step_view.gap_column, step_view.duration_column, step_view.label_column, step_view.detail_column)
    names = sum(len(each.name) + 30 for each in step_view.labels)
    known = sum(
        90 + len(each.operator) + len(each.shapes) + len(each.formats) + len(each.note) + 60 * (each.source is not None)
        for each in step_view.details
    )
    return sum(map(len, columns)) + names + known


Rows = Int64
KINDS = ("operator", "range", "call", "python", "compute", "communication", "copy", "input", "sync", "other")
MOST_PIECES = 12_000
"""Most pieces of the category track: a step on a CPU alternates between computing and dispatch at every operator."""
MOST_TRACKS = 64
"""Most tracks of streams, and of threads."""
_CATEGORIES = {
    EventKind.OPERATOR: "operator",
    EventKind.ANNOTATION: "range",
    EventKind.RUNTIME: "call",
    EventKind.PYTHON: "python",
    EventKind.KERNEL: "compute",
    EventKind.MEMCPY: "copy",
    EventKind.MEMSET: "copy",
}


Sources = Mapping[str, SourceLine]
"""Lines by operator name."""


def cut(
    steps: StepContext, at: int, number: int, how: str, sources: Sources | None = None, strips: Sequence[Strip] = ()
) -> StepView:
    """Step view of the step with index `at` in `steps`. number, how: as in `StepView`. sources: source lines for a
    trace without stacks. strips: further tracks (loader workers)."""
    known, step = sources or {}, _pair(steps.windows[at])
    displayed = (min(int(steps.boundaries[at, 0]), step[0]), max(int(steps.boundaries[at, 1]), step[1]))
    rows, left_out = _rows(steps.trace, displayed)
    tracks = _tracks(steps, rows, known)
    left_out += len(rows) - sum(map(len, tracks))
    tracks = [_category(steps, at, known), *_phases(displayed, steps.phases), *tracks, *strips]
    return assemble(tracks, displayed, step, number, how, left_out)


def usual(durations: Int64) -> int:
    """Index of the duration closest to the median."""
    return int(np.abs(durations - np.median(durations)).argmin())


def _category(steps: StepContext, at: int, sources: Sources) -> Strip:
    """Track with the category of each instant of the step, and the causes of idle time."""
    inside = tuple((category, clip(held, *_pair(steps.windows[at]))) for category, held in claims_of(steps))
    start, end, _, narrow = pieces_of(steps.windows[at : at + 1], EMPTY, inside)
    category = narrow.astype(np.int64)
    if len(start) > MOST_PIECES:
        kept = np.sort(np.argsort(start - end, kind="stable")[:MOST_PIECES])
        start, end, category = start[kept], end[kept], category[kept]
    labels = tuple(Label(each.name.lower(), each.name.lower()) for each in Category)
    details, detail = _causes(steps, start, sources) if steps.on_device else ((Detail(),), start * 0)
    return Strip("Where the time goes", "category", start, end, category, labels, detail, details)


def _causes(steps: StepContext, start: Int64, sources: Sources) -> tuple[tuple[Detail, ...], Int64]:
    """(details, their numbers by piece): causes of the idle pieces that start at these times."""
    gaps = gaps_of(steps)
    details: dict[Detail, int] = {Detail(): 0}
    known = {gaps.start[at].item(): details.setdefault(_cause(steps, gaps, at, sources), len(details))
             for at in np.flatnonzero(np.isin(gaps.start, start)).tolist()}  # fmt: skip
    return tuple(details), np.array([known.get(time, 0) for time in start.tolist()], np.int64)


def _cause(steps: StepContext, gaps: IdleGaps, at: int, sources: Sources) -> Detail:
    trace, links = steps.trace, steps.links
    cause, inside = int(gaps.cause[at]), int(gaps.inside[at])
    if cause == UNKNOWN:
        return Detail()
    name = trace.symbols[trace.events.name[cause]]
    function = int(links.function[cause])
    source = source_line(trace.symbols[trace.events.name[function]]) if function != UNKNOWN else None
    within = trace.symbols[trace.events.name[inside]] if inside not in (UNKNOWN, cause) else ""
    note = f"behind it: {text(function_name(name))}"
    if within and within != name:
        note += f", in it {text(function_name(within))}"
    return Detail(source=source or sources.get(name), note=note)


def _phases(displayed: tuple[int, int], phases: Mapping[Phase, Intervals]) -> list[Strip]:
    labels: list[Label] = []
    starts, ends, numbers = [], [], []
    for phase, held in phases.items():
        name, inside = phase.name.lower(), clip(held, *displayed)
        if len(inside):
            starts.append(inside.start)
            ends.append(inside.end)
            numbers.append(np.full(len(inside), len(labels), np.int64))
            labels.append(Label(name, "input" if name == "input" else "phase"))
    if not labels:
        return []
    start, end, label = (np.concatenate(each) for each in (starts, ends, numbers))
    return [Strip("Phases, from always-on timers", "phase", start, end, label, tuple(labels), label * 0, (Detail(),))]


def _rows(trace: Trace, displayed: tuple[int, int]) -> tuple[Rows, int]:
    """(events on threads and streams between two times, number left out): a step may be a whole trace, of millions."""
    events = trace.events
    rows = np.flatnonzero(
        (events.start < displayed[1]) & ((events.end > displayed[0]) | (events.start >= displayed[0]))
    )
    rows = rows[np.isin(events.event_kind[rows], (*HOST_CATEGORIES, *DEVICE))]
    over = len(rows) - MOST_EVENTS
    if over <= 0:
        return rows, 0
    weight = events.duration[rows] + FIRST * np.isin(events.event_kind[rows], DEVICE)
    return np.sort(rows[np.argsort(-weight, kind="stable")[:MOST_EVENTS]]), over


def _tracks(steps: StepContext, rows: Rows, sources: Sources) -> list[Strip]:
    """Streams by busy time, the training thread, autograd's, the others by busy time; MOST_TRACKS of each at most."""
    trace, events = steps.trace, steps.trace.events
    device = np.isin(events.event_kind[rows], DEVICE)
    found = []
    for on_device in (True, False):
        own = rows[device == on_device]
        spent = np.bincount(events.track[own], events.duration[own], len(trace.tracks))
        spent[[] if on_device else list(steps.tracks)] += FIRST
        for track in np.argsort(-spent, kind="stable")[:MOST_TRACKS].tolist():
            mine = own[events.track[own] == track]
            rank = 0 if on_device else 1 if track == steps.track else 2 if track in steps.tracks else 3
            if len(mine):
                found.append((rank, _strip(steps, mine, _name(trace, track, rank), rank, sources)))
    return [strip for _, strip in sorted(found, key=lambda each: each[0])]


def _name(trace: Trace, track: int, rank: int) -> str:
    place = trace.tracks[track]
    if rank == 0:
        stream = str(place.thread)
        stream = stream if stream.startswith("stream") else f"stream {stream}"
        return f"{stream}, device {place.process}" if len(trace.devices) > 1 else stream
    words = {1: "Training thread", 2: "Autograd's thread"}.get(rank, "Thread")
    return f"{words} {place.thread}"


def _strip(steps: StepContext, rows: Rows, name: str, rank: int, sources: Sources) -> Strip:
    trace, events = steps.trace, steps.trace.events
    symbols = np.stack((events.name[rows].astype(np.int64), _kinds(trace, rows)), axis=1)
    distinct, label = np.unique(symbols, axis=0, return_inverse=True)
    labels = tuple(Label(text(trace.symbols[symbol].removeprefix("void ")), KINDS[kind])
                   for symbol, kind in distinct.tolist())  # fmt: skip
    details, detail = _details(trace, steps.links, rows, sources)
    kind = "stream" if rank == 0 else "thread"
    start, end = events.start[rows], events.ends(rows)
    return Strip(name, kind, start, end, label.ravel(), labels, detail, details, first=rank == 0)


def _kinds(trace: Trace, rows: Rows) -> Int64:
    """Position in KINDS, by row."""
    event_kind = trace.events.event_kind[rows]
    kinds = np.full(len(rows), KINDS.index("other"), np.int64)
    for each, name in _CATEGORIES.items():
        kinds[event_kind == each] = KINDS.index(name)

    def named(test: Callable[[str], object]) -> Bool:
        return of_symbols(trace, test)[trace.events.name[rows]]

    kinds[communication_kernels(trace)[rows]] = KINDS.index("communication")
    kinds[(event_kind == EventKind.RUNTIME) & named(SYNCHRONISATION.match)] = KINDS.index("sync")
    annotated = np.isin(event_kind, (EventKind.ANNOTATION, EventKind.OPERATOR))
    kinds[annotated & named(LOADER.match)] = KINDS.index("input")
    return kinds


def _details(trace: Trace, links: Links, rows: Rows, sources: Sources) -> tuple[tuple[Detail, ...], Int64]:
    """Shapes, operator and line of each row; detail 0 is empty."""
    events = trace.events
    operator = links.operator[rows].astype(np.int64)
    known = operator != UNKNOWN
    at = np.where(known, operator, 0)
    function = links.function[rows].astype(np.int64)
    within = np.where(known & (operator != rows), events.name[at], ABSENT)
    own = np.where(known, events.name[at], ABSENT)
    shapes = np.where(known, events.shapes[at], ABSENT)
    formats = np.where(known, events.dtypes[at], ABSENT)
    source = np.where(function != UNKNOWN, events.name[np.where(function != UNKNOWN, function, 0)], ABSENT)
    moved = events.bytes[rows].astype(np.int64)
    table = np.stack((within, own, shapes, formats, source, moved), axis=1).astype(np.int64)
    table[np.isin(events.event_kind[rows], (EventKind.PYTHON,))] = ABSENT
    distinct, detail = np.unique(table, axis=0, return_inverse=True)
    return tuple(_detail(trace, row, sources) for row in distinct.tolist()), detail.ravel()


def _detail(trace: Trace, row: list[int], sources: Sources) -> Detail:
    within, own, shapes, formats, source, moved = row
    line = source_line(trace.symbols[source]) if source != ABSENT else None
    if line is None and own != ABSENT:
        line = sources.get(trace.symbols[own])
    return Detail(
        operator=text(trace.symbols[within]) if within != ABSENT else "",
        shapes=text(trace.shapes[shapes]) if shapes != ABSENT else "",
        formats=text(trace.dtypes[formats]) if formats != ABSENT else "",
        source=line,
        note=f"{moved:,} bytes" if moved != ABSENT else "",
    )


def _pair(window: Int64) -> tuple[int, int]:
    return int(window[0]), int(window[1])


def step_view_of_trace(steps: StepContext, numbers: Int64) -> StepView:
    """Step view of the steady step closest to the median, of at least one. numbers: indices among all steps."""
    at = usual(steps.windows[:, 1] - steps.windows[:, 0])
    count = len(steps)
    how = "the only steady step" if count == 1 else f"the step closest to the median of {count} steady steps"
    return cut(steps, at, int(numbers[at]), how)


_WORK = {Kind.FETCH: Label("reads items", "input"), Kind.COLLATE: Label("collates", "operator"),
         Kind.QUEUE: Label("waits for an index", "other")}  # fmt: skip
MOST_WORKERS = 32


def step_view_of_process(process: Process, series: Steps, recorded: RecordedBreakdown) -> StepView | None:
    """Step view of the profiled step closest to the median, or None. series: all steps of the process."""
    steps = recorded.profiled
    if steps is None:
        return None
    at = usual(steps.windows[:, 1] - steps.windows[:, 0])
    start, end = steps.boundaries[at].tolist()
    number = int(np.searchsorted(series.end, end - steps.shift))
    workers = _workers(
        process.workers, steps.shift, min(start, int(steps.windows[at, 0])), max(end, int(steps.windows[at, 1]))
    )
    count = len(steps)
    how = "the profiled step" if count == 1 else f"the step closest to the median of {count} profiled steps"
    return cut(steps, at, number, how, recorded.sources, tuple(workers))


def _workers(table: IntervalTable, shift: int, start: int, end: int) -> Iterator[Strip]:
    """Tracks of the loader workers' work between two times."""
    starts, stops = table.start + shift, table.end + shift
    inside = (starts < end) & (stops > start) & np.isin(table.kind, [int(kind) for kind in _WORK])
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
