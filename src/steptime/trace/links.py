"""Relations between the events of a trace: which encloses, launched, computed or caused which. The room's central type.

CPU events are nested once, all tracks together. Other questions (the innermost operator, annotation, user's function)
are walks up that forest, without a loop over events. Kineto names a Python function (with_stack) by its file and first
line, "train.py(12): forward", not the running line.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from steptime.arrays import PIECE, Bool, Few, Int32, Int64, Numbers, Row, Rows, few, looked_up
from steptime.quantities import SourceLine
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.call_tree import ROOT, enclosing, nearest_ancestor, nesting_order
from steptime.trace.table import ABSENT, HOST_CATEGORIES, EventKind, EventTable, Launched, Trace
from steptime.trace.vendors import ANNOTATION, PROFILER, QUEUEING, STEP, is_compiled, is_engine, matching, of_symbols

Width = TypeVar("Width", bound=np.signedinteger[Any])
UNKNOWN = -1
"""No such event in the trace."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Nesting of a trace's events. parent: row of the innermost event around each row, UNKNOWN if none or not
    nested."""

    parent: Int32

    def nearest(self, marked: Bool) -> Int32:
        """Row of the innermost marked event around each row, itself included. marked: mask of nested events."""
        return nearest_ancestor(self.parent, marked) if marked.any() else nowhere(len(self.parent))

    def enclosing(self, marked: Bool) -> Int32:
        """Row of the innermost marked event around each row, the row itself excluded."""
        if not marked.any():
            return nowhere(len(self.parent))
        found = nearest_ancestor(self.parent, marked)[self.parent]
        found[self.parent == UNKNOWN] = UNKNOWN
        return found

    def outermost(self, rows: Numbers, marked: Bool) -> Int32:
        """Row of the outermost marked event around each of some rows; the row itself if there is none."""
        found = rows.astype(np.int32)
        climbing = np.arange(len(found))
        while len(climbing):
            above = self.around(found[climbing], marked, itself=False)
            climbing, above = climbing[above != UNKNOWN], above[above != UNKNOWN]
            found[climbing] = above
        return found

    def around(self, rows: Numbers, marked: Bool, *, itself: bool) -> Int32:
        """Row of the innermost marked event around each of some rows, computed for these rows alone. itself: True if a
        row may be its own result."""
        found = rows.astype(np.int32) if itself else self.parent[rows]
        climbing = np.flatnonzero(found != UNKNOWN)
        while len(climbing := climbing[~marked[found[climbing]]]):
            found[climbing] = self.parent[found[climbing]]
            climbing = climbing[found[climbing] != UNKNOWN]
        return found


def nowhere(size: int) -> Int32:
    """Read-only column of UNKNOWN without memory per row."""
    return np.broadcast_to(np.int32(UNKNOWN), (size,))


def none_of(size: int) -> Bool:
    """Read-only column of False without memory per row."""
    return np.broadcast_to(np.False_, (size,))


class ComputedColumn(ABC):
    """Column of rows, indexed as an array is, whose values are computed on access."""

    __slots__ = ()

    @overload
    def __getitem__(self, rows: Row) -> int: ...
    @overload
    def __getitem__(self, rows: Rows) -> Int32: ...
    def __getitem__(self, rows: Rows | Row) -> Any:
        return self.at(rows)[()]

    @abstractmethod
    def at(self, rows: Rows | Row) -> Int32:
        """Values of the column at some rows; an array without dimensions for a single row."""


@dataclass(frozen=True, slots=True, eq=False)
class Around(ComputedColumn):
    """Innermost marked event around each event. origin: CPU event that each device activity comes from; its
    surroundings count for the activity. marked: mask over the rows. itself: True if an event may be its own result."""

    forest: Forest
    origin: Few
    marked: Bool
    itself: bool = True

    def at(self, rows: Rows | Row) -> Int32:
        asked = np.arange(len(self.origin), dtype=np.int32)[rows] if isinstance(rows, slice) else np.asarray(rows)
        asked = np.flatnonzero(asked) if asked.dtype == np.bool_ else asked
        origin = self.origin[asked]
        start = np.atleast_1d(np.where(origin == UNKNOWN, asked, origin))
        return self.forest.around(start, self.marked, itself=self.itself).reshape(asked.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Forward(ComputedColumn):
    """Forward operator of the autograd frame around each event. frames: rows of these frames, ascending; found: row of
    the forward operator of each."""

    frame: Around
    frames: Int32
    found: Int32

    def at(self, rows: Rows | Row) -> Int32:
        frame = self.frame.at(rows)
        at = np.searchsorted(self.frames, frame)
        return np.where(frame == UNKNOWN, UNKNOWN, np.append(self.found, np.int32(UNKNOWN))[at])


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Related event for each event of the table: its row, or UNKNOWN. Read-only. `Around` and `Forward` columns are
    computed on access, by rows, mask or slice.

    launch: runtime call with the same correlation id, for a device activity (kernel, copy, memset). A graph launch owns
    all kernels of its graph. parent: innermost operator, annotation or runtime call of the thread around a CPU event.
    operator: innermost operator, for a CPU event around it or itself, for a device activity around its launch (by
    "External id" if the trace holds no launch). annotation: innermost annotation, likewise (a module's, a user's, the
    optimizer's; not ProfilerStep). function: innermost Python function of the user's (with_stack), likewise; for
    backward, that of the forward operator. forward: forward operator with the same sequence number, for what autograd's
    engine runs. module: module call around the event or around its forward operator. step: index of the step in which a
    CPU event starts or a device activity was launched; UNKNOWN outside of all steps."""

    launch: Few
    parent: Around
    operator: Around
    annotation: Around
    function: Int32
    forward: Forward
    module: Int32
    step: Numbers


SPREAD = 8
"""Factor: numbers are looked up in a table if their range is at most this many times their count."""


def latest_before(keys: Int64, times: Int64, wanted: Int64, moments: Int64, *, later: bool) -> Int64:
    """Position of the latest candidate that has each wanted number and is at or before its moment. Without one: the
    earliest candidate with the number if `later`, else UNKNOWN. keys, times: number and time of each candidate, in any
    order. Numbers are nearly always unique up to the moment, so the last candidate of each number is tried first, and
    only the remaining ones are sorted."""
    order = np.argsort(times, kind="stable")
    found = _last_with(keys[order], wanted)
    found = np.where(found == UNKNOWN, UNKNOWN, order[found]) if len(order) else found
    late = np.flatnonzero((found != UNKNOWN) & (times[found] > moments)) if len(order) else np.empty(0, np.int64)
    if len(late):
        among = np.flatnonzero(np.isin(keys, wanted[late]))
        found[late] = among[_merged(keys[among], times[among], wanted[late], moments[late])]
        if not later:
            found[late[times[found[late]] > moments[late]]] = UNKNOWN
    return found


def _last_with(keys: Int64, wanted: Int64) -> Int64:
    """Last position of each wanted number among the keys, UNKNOWN if it is not there."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), UNKNOWN, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low <= SPREAD * (len(keys) + len(wanted)) + 1024:
        table = np.full(high - low + 1, UNKNOWN, np.int64)
        table[keys.astype(np.int64) - low] = np.arange(len(keys))
        inside = (wanted >= low) & (wanted <= high)
        return np.where(inside, table[np.where(inside, wanted.astype(np.int64) - low, 0)], UNKNOWN)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    hit = (at >= 0) & (keys[order][np.maximum(at, 0)] == wanted)
    return np.where(hit, order[np.maximum(at, 0)], UNKNOWN)


def _merged(keys: Int64, times: Int64, wanted: Int64, moments: Int64) -> Int64:
    """Result of `latest_before` with `later`, for numbers that all occur among the keys, by sorting both together."""
    both = np.concatenate((keys, wanted))
    is_wanted = np.arange(len(both)) >= len(keys)
    order = np.lexsort((is_wanted, np.concatenate((times, moments)), both))
    position = np.arange(len(order))
    candidate = ~is_wanted[order]
    before = np.maximum.accumulate(np.where(candidate, position, UNKNOWN))
    after = np.minimum.accumulate(np.where(candidate, position, len(order))[::-1])[::-1]
    same = (before != UNKNOWN) & (both[order[np.maximum(before, 0)]] == both[order])
    chosen = order[np.where(same, before, np.minimum(after, len(order) - 1))]
    found = np.empty(len(order), np.int64)
    found[order] = chosen
    return found[len(keys) :]


FRAME = re.compile(r"^(?P<file>(?:<ipython-input-|[^<]).*)\((?P<line>\d+)\): (?P<function>.*)$")
BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<function>\w+)(?: of .*)?>$")
FOREIGN = re.compile(r"(^|/)(site-packages|dist-packages|lib/python\d[\d.]*|steptime/(?:capture|probe))/")
"""Folders of libraries. The last is steptime's own, also in a checkout (`pip install --editable`); the probe was in
capture/ once."""
GENERATED = re.compile(r"^(/private)?(/tmp|/var/tmp|/var/folders/.*/T)/(__main__|\w+\.)[^/]*_[a-z0-9_]{8}\.py$")
"""Files that a library writes while the job runs: a module's name and `tempfile`'s characters (PyTorch Geometric)."""
_LIBRARIES = """
torch torchvision torchaudio numpy pandas scipy sklearn PIL transformers accelerate datasets tokenizers lightning
pytorch_lightning lightning_fabric keras timm peft trl diffusers ignite fastai deepspeed megatron tqdm wandb mlflow
hydra click steptime lightning_utilities torchmetrics huggingface_hub safetensors
"""
LIBRARIES = frozenset(_LIBRARIES.split())
"""Names of libraries. Kineto strips sys.path from file names, so packages are known by their first folder only."""


def is_user_file(file: str) -> bool:
    """True for a file of the user's: it belongs to no library and not to Python, and existed before the job."""
    parts = PurePath(file).parts
    if file.startswith("<ipython-input-"):
        return True
    if not parts or file.startswith("<") or FOREIGN.search(file) or GENERATED.match(file):
        return False
    top = parts[0].removesuffix(".py")
    return top not in LIBRARIES and top not in sys.stdlib_module_names


def with_full_paths(trace: Trace, packages: Iterable[str]) -> Trace:
    """The trace with full paths for files of these packages (folders or files), so that they count as libraries."""
    paths = {PurePath(each).name: each for each in packages if PurePath(each).stem not in LIBRARIES}

    def full(symbol: str) -> str:
        first = frame["file"].partition("/")[0] if (frame := FRAME.match(symbol)) else ""
        return paths[first] + symbol.removeprefix(first) if first and first in paths else symbol

    return replace(trace, symbols=tuple(map(full, trace.symbols)))


def source_line(symbol: str) -> SourceLine | None:
    """Line at which the Python function of a symbol starts; None if the symbol is no Python function in a file."""
    found = FRAME.match(symbol)
    return SourceLine(found["file"], int(found["line"]), found["function"]) if found else None


def function_name(symbol: str) -> str:
    """Bare name of a symbol's function: "zoom" of "<built-in function zoom>", "forward" of "train.py(12): forward";
    else the symbol."""
    found = FRAME.match(symbol) or BUILT_IN.match(symbol)
    return found["function"] if found else symbol


def host_events(trace: Trace) -> Bool:
    """Mask of the events on CPU threads."""
    return trace.events.are(*HOST_CATEGORIES)


@cached_per_trace
def host_forest(trace: Trace) -> Forest:
    return forest_of(trace.events, np.flatnonzero(host_events(trace)).astype(np.int32))


@cached_per_trace
def running_before(trace: Trace) -> Bool:
    """Mask of the Python functions on the stack when the profiler started. Kineto records them at that moment, nested,
    each by the line it was at (torch's profiler_python.cpp)."""
    starting = matching(trace, PROFILER.match)
    if not starting.any():
        return none_of(len(starting))
    found, parent = np.zeros(len(trace.events), np.bool_), host_forest(trace).parent
    for nested in by_track(trace.events, np.flatnonzero(host_events(trace)).astype(np.int32)):
        last = 0
        while last + 1 < len(nested) and parent[nested[last + 1]] == nested[last] and not starting[nested[last]]:
            last += 1
        if starting[nested[last]]:
            found[nested[:last]] = True
    return found


def forest_of(events: EventTable, rows: Int32) -> Forest:
    """Nesting of some events, each track separately. rows: rows of these events, ascending."""
    parent = np.full(len(events), UNKNOWN, np.int32)
    for nested in by_track(events, rows):
        above = enclosing(events.start[nested], events.ends(nested))
        parent[nested] = np.where(above == ROOT, np.int32(UNKNOWN), nested[above])
    return Forest(parent)


def by_track(events: EventTable, rows: Int32) -> Iterator[Int32]:
    """Yields the rows of each track in turn, parents before children; which bounds the memory. rows: ascending."""
    if not len(rows):
        return
    counts = np.bincount(events.track[rows])
    ordered = rows[np.argsort(events.track[rows], kind="stable")]
    for mine in np.split(ordered, np.cumsum(counts)[:-1]):
        if len(mine):
            yield mine[nesting_order(events.start[mine], events.duration[mine])]


DEVICE = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
MODULE = re.compile("nn.Module: ")
"""Kineto's name for a module call among Python functions, and the probe's name in its ranges."""


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """Masks of CPU events by role. engine: frames of autograd. module: calls of modules, by the probe's ranges if
    any."""

    operator: Bool
    engine: Bool
    annotation: Bool
    function: Bool
    module: Bool


@cached_per_trace
def link(trace: Trace, boundaries: Int64) -> Links:
    """Relations between the events of a trace. boundaries: steps on the CPU, (n, 2), ns, in order, disjoint; may be
    empty."""
    roles = roles_of(trace)
    made = host_forest(trace)
    origin = origins_of(trace)
    forward = _forwards(trace, made, origin, roles)
    return Links(
        launch=launches_of(trace),
        parent=Around(
            made, few(nowhere(len(trace.events)), UNKNOWN), trace.events.event_kind != EventKind.PYTHON, itself=False
        ),
        operator=Around(made, origin, roles.operator),
        annotation=Around(made, origin, roles.annotation),
        function=_through(origin, _called_from(trace, made, roles.function, forward)),
        forward=forward,
        module=_through(origin, _called_from(trace, made, roles.module, forward)),
        step=_through(origin, _steps(trace, boundaries, launched=len(origin.rows) > 0)),
    )


@cached_per_trace
def roles_of(trace: Trace) -> Roles:
    """Roles of the CPU events. Files of 2021 list annotations among the operators; compiled code is only annotated."""
    event_kind, name = trace.events.event_kind, trace.events.name
    listed, noted, python = (event_kind == k for k in (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON))
    compiled, annotated = of_symbols(trace, is_compiled), of_symbols(trace, ANNOTATION.match)
    modules, steps = of_symbols(trace, MODULE.match), of_symbols(trace, STEP.match)
    if not len(trace.symbols):
        return Roles(listed, listed, listed, listed, listed)
    operator = (listed & ~looked_up(annotated, name)) | (noted & looked_up(compiled, name))
    called = looked_up(modules, name)
    module, ranges = python & called, noted & called
    annotation = ((listed | noted) & ~operator & ~looked_up(steps, name) & ~ranges) | module
    engine = operator & looked_up(of_symbols(trace, is_engine), name)
    if not python.any():
        none = none_of(len(name))
        return Roles(operator, engine, annotation, none, ranges if ranges.any() else none)
    frames = (FRAME.match(symbol) for symbol in trace.symbols)
    of_user = np.array([frame is not None and is_user_file(frame["file"]) for frame in frames])
    function = python & looked_up(of_user, name) & ~running_before(trace)
    return Roles(operator, engine, annotation, function, ranges if ranges.any() else module)


def linked(trace: Trace) -> Trace:
    """The trace with launches and origins stored in place of the ids that they were computed from."""
    if trace.launched is not None:
        return trace
    nothing: Any = np.broadcast_to(np.int8(ABSENT), (len(trace.events),))
    return replace(
        trace,
        events=replace(trace.events, correlation=nothing, external=nothing),
        launched=Launched(launches_of(trace), origins_of(trace)),
    )


@cached_per_trace
def launches_of(trace: Trace) -> Few:
    """Maps each device activity to the runtime call with the same correlation id, preferring calls whose name is a
    launch (HIP gives the calls around a launch its number too). Without correlation ids, "External id" is used
    (roctracer's, as torch for ROCm writes it; operators' external ids are unrelated). Without any id, calls and
    activities are paired in time order."""
    if trace.launched is not None:
        return trace.launched.launch
    events = trace.events
    rows = np.flatnonzero(events.are(*DEVICE)).astype(np.int32)
    found, alone = np.full(len(rows), UNKNOWN, np.int32), events.correlation[rows] == ABSENT
    called = np.flatnonzero(events.event_kind == EventKind.RUNTIME).astype(np.int32)
    for numbers, numbered, calls in (
        (events.correlation, ~alone, called[events.correlation[called] != ABSENT]),
        (events.external, alone & (events.external[rows] != ABSENT), called[events.correlation[called] == ABSENT]),
    ):
        calls = calls[numbers[calls] != ABSENT]
        launching = of_symbols(trace, QUEUEING.match)[events.name[calls]] if len(calls) else np.empty(0, np.bool_)
        for candidates in (calls[launching], calls[~launching]):
            asking = np.flatnonzero(numbered & (found == UNKNOWN))
            found[asking] = _by_number(numbers, events.start, candidates, rows[asking])
    if len(rows) and (found == UNKNOWN).all() and (alone & (events.external[rows] == ABSENT)).all():
        found = _by_time(trace, rows, called)
    return Few(len(events), UNKNOWN, rows[found != UNKNOWN], found[found != UNKNOWN])


@cached_per_trace
def origins_of(trace: Trace) -> Few:
    """CPU event that each device activity comes from: its launch, else the operator with the same "External id"."""
    if trace.launched is not None:
        return trace.launched.origin
    events, launch = trace.events, launches_of(trace)
    rows = np.flatnonzero(events.are(*DEVICE)).astype(np.int32)
    found = launch[rows]
    lost = np.flatnonzero((found == UNKNOWN) & (events.external[rows] != ABSENT))
    if not len(lost):
        return launch
    operators = np.flatnonzero((events.event_kind == EventKind.OPERATOR) & (events.external != ABSENT)).astype(np.int32)
    found[lost] = _by_number(events.external, events.start, operators, rows[lost])
    return Few(len(events), UNKNOWN, rows[found != UNKNOWN], found[found != UNKNOWN])


def _by_time(trace: Trace, rows: Int32, called: Int32) -> Int32:
    """Call of each activity of a single stream, paired in time order; UNKNOWN unless the numbers of calls and
    activities are equal and no call is later than its activity."""
    events = trace.events
    calls = called[of_symbols(trace, QUEUEING.match)[events.name[called]]] if len(called) else called
    calls, order = calls[np.argsort(events.start[calls], kind="stable")], np.argsort(events.start[rows], kind="stable")
    found, one = np.full(len(rows), UNKNOWN, np.int32), len(np.unique(events.track[rows])) == 1
    if one and len(calls) == len(rows) and (events.start[calls] <= events.start[rows[order]]).all():
        found[order] = calls
    return found


def _by_number(numbers: Numbers, start: Int64, candidates: Int32, rows: Int32) -> Int32:
    """Candidate with the same number for each row, UNKNOWN if there is none."""
    at = latest_before(numbers[candidates], start[candidates], numbers[rows], start[rows], later=True)
    return np.where(at == UNKNOWN, np.int32(UNKNOWN), np.append(candidates, np.int32(UNKNOWN))[at])


def _through(origin: Few, of_host: npt.NDArray[Width]) -> npt.NDArray[Width]:
    """Column with the values of CPU events copied to the device activities that come from them, in place."""
    if of_host.flags.writeable:  # else no event has one
        of_host[origin.rows] = of_host[origin.values]
        of_host.flags.writeable = False
    return of_host


def _forwards(trace: Trace, made: Forest, origin: Few, roles: Roles) -> Forward:
    """Forward operator of each autograd frame.

    The frame has the sequence number. Operators that record nothing carry the number of the next one that does, so the
    last one before the frame owns it. In backward gradients are off and operators have no number, except those that
    checkpointing reruns or that are differentiated twice; these own frames likewise."""
    events = trace.events
    numbered = events.sequence != ABSENT
    framing = roles.engine & numbered
    frames = np.flatnonzero(framing)
    operators = np.flatnonzero(roles.operator & ~roles.engine & numbered)
    sequence, start = events.sequence, events.start
    at = latest_before(sequence[operators], start[operators], sequence[frames], start[frames], later=False)
    found = np.where(at == UNKNOWN, UNKNOWN, np.append(operators, UNKNOWN)[at]).astype(np.int32)
    return Forward(Around(made, origin, framing), frames.astype(np.int32), found)


def _called_from(trace: Trace, made: Forest, callers: Bool, forwards: Forward) -> Int32:
    """Caller (a user's function, a module) around each CPU event.

    Around backward there is only the caller of backward, so the forward operator's caller is used, unless a caller runs
    inside the frame itself: a hook, a custom function, checkpointing."""
    around = made.nearest(callers)
    if not callers.any():
        return around
    start, frame, forward = trace.events.start, made.nearest(forwards.frame.marked), forwards[:]
    called = (frame != UNKNOWN) & (forward != UNKNOWN) & ((around == UNKNOWN) | (start[around] < start[frame]))
    source = np.where(called, forward, np.arange(len(forward), dtype=np.int32))
    walking = np.flatnonzero(called)
    while len(walking):  # a forward operator starts before its frame, so this ends
        reached = source[source[walking]]
        moved = reached != source[walking]
        source[walking] = reached
        walking = walking[moved]
    return np.where(around[source] == UNKNOWN, around, around[source])


def _steps(trace: Trace, boundaries: Int64, *, launched: bool) -> Numbers:
    """Step in which each event starts; of device activities only if no launch is known: work may be another step's."""
    events = trace.events
    known = host_events(trace) if launched else host_events(trace) | events.are(*DEVICE)
    width: type[np.signedinteger[Any]] = np.int16 if len(boundaries) < 1 << 15 else np.int32
    step = np.empty(len(events), width)
    ends = boundaries[:, 1] if len(boundaries) else np.zeros(1, np.int64)
    for first in range(0, len(events), PIECE):
        part = slice(first, first + PIECE)
        found = np.searchsorted(boundaries[:, 0], events.start[part], side="right") - 1
        step[part] = np.where(known[part] & (events.start[part] < ends[found]), found, UNKNOWN)
    return step
