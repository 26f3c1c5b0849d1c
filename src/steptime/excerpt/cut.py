"""Cutting a step out of a trace: its threads, its streams, and what its time is posted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.excerpt.excerpt import Detail, Excerpt, Label
from steptime.excerpt.strips import FIRST, MOST_EVENTS, Strip, assemble, text
from steptime.intervals import EMPTY, Intervals, clip
from steptime.kineto.table import ABSENT, HOST_CATEGORIES, Category, Trace
from steptime.ledger.account import claims_of, has_kernels
from steptime.ledger.gaps import Gaps, gaps_of, pieces_of
from steptime.ledger.ledger import Account
from steptime.ledger.processor import Claims
from steptime.ledger.threads import autograd_lanes, training_lane
from steptime.links.frames import function_name, source_line
from steptime.links.link import link
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import COMMUNICATION_KERNEL, LOADER, SYNCHRONISATION, of_symbols
from steptime.quantities import SourceLine

Rows = Int64
DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
KINDS = ("operator", "range", "call", "python", "compute", "communication", "copy", "input", "sync", "other")
MOST_PIECES = 12_000
"""Of the account: a step on a CPU alternates between computing and dispatching at every operator."""
MOST_TRACKS = 64
"""Of streams, and of threads."""
_CATEGORIES = {
    Category.OPERATOR: "operator",
    Category.ANNOTATION: "range",
    Category.RUNTIME: "call",
    Category.PYTHON: "python",
    Category.KERNEL: "compute",
    Category.MEMCPY: "copy",
    Category.MEMSET: "copy",
}


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """What the caller knows beside the trace; times in ns on the trace's clock. phases: by name. thread: the system's
    id of the training thread. sources: lines by operator name. strips: further tracks (a loader's workers)."""

    input_ranges: Intervals = field(default_factory=lambda: EMPTY)
    compile_ranges: Intervals = field(default_factory=lambda: EMPTY)
    claims: Claims | None = None
    phases: Mapping[str, Intervals] = field(default_factory=dict)
    thread: int | None = None
    sources: Mapping[str, SourceLine] = field(default_factory=dict)
    strips: Sequence[Strip] = ()


def cut(trace: Trace, borders: Int64, windows: Int64, at: int, number: int, how: str, beside: Beside) -> Excerpt:
    """One of the steps of a trace. borders, windows: (n, 2) ns, all steps as the host and as the ledger have them; at:
    which of them; number, how: as in `Excerpt`."""
    links = link(trace, borders)
    step = _pair(windows[at])
    shown = (min(int(borders[at, 0]), step[0]), max(int(borders[at, 1]), step[1]))
    rows, left_out = _rows(trace, shown)
    tracks = _tracks(trace, links, rows, beside)
    left_out += len(rows) - sum(map(len, tracks))
    strips = [_account(trace, links, windows, at, beside), *_phases(shown, beside), *tracks, *beside.strips]
    return assemble(strips, shown, step, number, how, left_out)


def usual(durations: Int64) -> int:
    """Which of some steps is the usual one: the one next to the median."""
    return int(np.abs(durations - np.median(durations)).argmin())


def _account(trace: Trace, links: Links, windows: Int64, at: int, beside: Beside) -> Strip:
    """What each instant of the step is posted to, idle time with its cause."""
    claims = beside.claims or claims_of(
        trace, input_ranges=beside.input_ranges, compile_ranges=beside.compile_ranges, training_thread=beside.thread
    )
    inside = tuple((account, clip(held, *_pair(windows[at]))) for account, held in claims)
    begin, end, _, account = pieces_of(windows[at : at + 1], EMPTY, inside)
    if len(begin) > MOST_PIECES:
        kept = np.sort(np.argsort(begin - end, kind="stable")[:MOST_PIECES])
        begin, end, account = begin[kept], end[kept], account[kept]
    labels = tuple(Label(each.name.lower(), each.name.lower()) for each in Account)
    details, detail = _causes(trace, links, windows, begin, beside) if has_kernels(trace) else ((Detail(),), begin * 0)
    return Strip("Where the time goes", "account", begin, end, account, labels, detail, details)


def _causes(
    trace: Trace, links: Links, windows: Int64, begin: Int64, beside: Beside
) -> tuple[tuple[Detail, ...], Int64]:
    """What is behind the pieces that begin at these times. windows: of all steps, which the rules asked for, too."""
    gaps = gaps_of(
        trace, links, windows, input_ranges=beside.input_ranges, compile_ranges=beside.compile_ranges,
        training_thread=beside.thread,
    )  # fmt: skip
    details: dict[Detail, int] = {Detail(): 0}
    known = {gaps.begin[at].item(): details.setdefault(_cause(trace, links, gaps, at, beside), len(details))
             for at in np.flatnonzero(np.isin(gaps.begin, begin)).tolist()}  # fmt: skip
    return tuple(details), np.array([known.get(time, 0) for time in begin.tolist()], np.int64)


def _cause(trace: Trace, links: Links, gaps: Gaps, at: int, beside: Beside) -> Detail:
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
    return Detail(source=source or beside.sources.get(name), note=note)


def _phases(shown: tuple[int, int], beside: Beside) -> list[Strip]:
    labels: list[Label] = []
    begins, ends, numbers = [], [], []
    for name, held in beside.phases.items():
        inside = clip(held, *shown)
        if len(inside):
            begins.append(inside.begin)
            ends.append(inside.end)
            numbers.append(np.full(len(inside), len(labels), np.int64))
            labels.append(Label(name, "input" if name == "input" else "phase"))
    if not labels:
        return []
    begin, end, label = (np.concatenate(each) for each in (begins, ends, numbers))
    return [Strip("Phases, as watched", "phase", begin, end, label, tuple(labels), label * 0, (Detail(),))]


def _rows(trace: Trace, shown: tuple[int, int]) -> tuple[Rows, int]:
    """What happened on threads and streams between two times, and how much of it is left out already: a step that is a
    whole trace has millions of events."""
    events = trace.events
    rows = np.flatnonzero((events.begin < shown[1]) & ((events.end > shown[0]) | (events.begin >= shown[0])))
    rows = rows[np.isin(events.category[rows], (*HOST_CATEGORIES, *DEVICE))]
    over = len(rows) - MOST_EVENTS
    if over <= 0:
        return rows, 0
    weight = events.duration[rows] + FIRST * np.isin(events.category[rows], DEVICE)
    return np.sort(rows[np.argsort(-weight, kind="stable")[:MOST_EVENTS]]), over


def _tracks(trace: Trace, links: Links, rows: Rows, beside: Beside) -> list[Strip]:
    """Streams by the time they were busy, the training thread, autograd's, then the others by theirs: MOST_TRACKS of
    streams and of threads, as nobody looks at more."""
    events = trace.events
    device = np.isin(events.category[rows], DEVICE)
    training = training_lane(trace, beside.thread)
    engine = autograd_lanes(trace, training) if training is not None else []
    found = []
    for on_device in (True, False):
        own = rows[device == on_device]
        spent = np.bincount(events.lane[own], events.duration[own], len(trace.lanes))
        special = [] if on_device else [lane for lane in (training, *engine) if lane is not None]
        spent[special] += FIRST
        for lane in np.argsort(-spent, kind="stable")[:MOST_TRACKS].tolist():
            mine = own[events.lane[own] == lane]
            rank = 0 if on_device else 1 if lane == training else 2 if lane in engine else 3
            if len(mine):
                found.append((rank, _strip(trace, links, mine, _name(trace, lane, rank), rank, beside)))
    return [strip for _, strip in sorted(found, key=lambda each: each[0])]


def _name(trace: Trace, lane: int, rank: int) -> str:
    place = trace.lanes[lane]
    if rank == 0:
        stream = str(place.thread)
        stream = stream if stream.startswith("stream") else f"stream {stream}"
        return f"{stream}, device {place.process}" if len(trace.devices) > 1 else stream
    words = {1: "Training thread", 2: "Autograd's thread"}.get(rank, "Thread")
    return f"{words} {place.thread}"


def _strip(trace: Trace, links: Links, rows: Rows, name: str, rank: int, beside: Beside) -> Strip:
    events = trace.events
    symbols = np.stack((events.name[rows].astype(np.int64), _kinds(trace, rows)), axis=1)
    distinct, label = np.unique(symbols, axis=0, return_inverse=True)
    labels = tuple(Label(text(trace.symbols[symbol].removeprefix("void ")), KINDS[kind])
                   for symbol, kind in distinct.tolist())  # fmt: skip
    details, detail = _details(trace, links, rows, beside)
    kind = "stream" if rank == 0 else "thread"
    begin, end = events.begin[rows], events.end[rows]
    return Strip(name, kind, begin, end, label.ravel(), labels, detail, details, first=rank == 0)


def _kinds(trace: Trace, rows: Rows) -> Int64:
    """By row, a number in KINDS."""
    category = trace.events.category[rows]
    kinds = np.full(len(rows), KINDS.index("other"), np.int64)
    for each, name in _CATEGORIES.items():
        kinds[category == each] = KINDS.index(name)

    def named(test: Callable[[str], object]) -> Bool:
        return of_symbols(trace, test)[trace.events.name[rows]]

    kinds[(category == Category.KERNEL) & named(COMMUNICATION_KERNEL.search)] = KINDS.index("communication")
    kinds[(category == Category.RUNTIME) & named(SYNCHRONISATION.search)] = KINDS.index("sync")
    annotated = np.isin(category, (Category.ANNOTATION, Category.OPERATOR))
    kinds[annotated & named(LOADER.match)] = KINDS.index("input")
    return kinds


def _details(trace: Trace, links: Links, rows: Rows, beside: Beside) -> tuple[tuple[Detail, ...], Int64]:
    """Shapes, operator and line of each row; what says nothing is detail 0."""
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
    table[np.isin(events.category[rows], (Category.PYTHON,))] = ABSENT
    distinct, detail = np.unique(table, axis=0, return_inverse=True)
    return tuple(_detail(trace, row, beside) for row in distinct.tolist()), detail.ravel()


def _detail(trace: Trace, row: list[int], beside: Beside) -> Detail:
    within, own, shapes, formats, source, moved = row
    line = source_line(trace.symbols[source]) if source != ABSENT else None
    if line is None and own != ABSENT:
        line = beside.sources.get(trace.symbols[own])
    return Detail(
        operator=text(trace.symbols[within]) if within != ABSENT else "",
        shapes=text(trace.shapes[shapes]) if shapes != ABSENT else "",
        formats=text(trace.dtypes[formats]) if formats != ABSENT else "",
        source=line,
        note=f"{moved:,} bytes" if moved != ABSENT else "",
    )


def _pair(window: Int64) -> tuple[int, int]:
    return int(window[0]), int(window[1])
