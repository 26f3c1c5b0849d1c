"""How the events of a trace hang together: who encloses, launched, computed or caused whom. The room's central type.

The host's events are nested once, all tracks together; what else they are asked (the innermost operator, annotation,
user's function) are walks up that forest. No loop goes over events.

Kineto names a Python function (with_stack) by its file and first line, "train.py(12): forward", not the running line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
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
    """parent: by row, that of the innermost event around each, UNKNOWN for none and for what was not nested."""

    parent: Int32

    def nearest(self, marked: Bool) -> Int32:
        """By row: that of the innermost marked event which encloses it or is it. marked: by row, of nested events."""
        return nearest_ancestor(self.parent, marked) if marked.any() else nowhere(len(self.parent))

    def enclosing(self, marked: Bool) -> Int32:
        """The same without itself."""
        if not marked.any():
            return nowhere(len(self.parent))
        found = nearest_ancestor(self.parent, marked)[self.parent]
        found[self.parent == UNKNOWN] = UNKNOWN
        return found

    def outermost(self, rows: Numbers, marked: Bool) -> Int32:
        """The outermost marked event that encloses each of some rows; itself where none does."""
        found = rows.astype(np.int32)
        climbing = np.arange(len(found))
        while len(climbing):
            above = self.around(found[climbing], marked, itself=False)
            climbing, above = climbing[above != UNKNOWN], above[above != UNKNOWN]
            found[climbing] = above
        return found

    def around(self, rows: Numbers, marked: Bool, *, itself: bool) -> Int32:
        """The same of some rows only, which costs as much as there are of them."""
        found = rows.astype(np.int32) if itself else self.parent[rows]
        climbing = np.flatnonzero(found != UNKNOWN)
        while len(climbing := climbing[~marked[found[climbing]]]):
            found[climbing] = self.parent[found[climbing]]
            climbing = climbing[found[climbing] != UNKNOWN]
        return found


def nowhere(size: int) -> Int32:
    """UNKNOWN for each of so many rows, without memory for each; read-only."""
    return np.broadcast_to(np.int32(UNKNOWN), (size,))


def none_of(size: int) -> Bool:
    """False for each of so many rows, likewise."""
    return np.broadcast_to(np.False_, (size,))


@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """For each event the innermost marked one around it, or around what it comes from. origin: of activities of a
    device, the event of the host that they come from. marked: by row. itself: whether an event may be its own."""

    forest: Forest
    origin: Few
    marked: Bool
    itself: bool = True

    def __len__(self) -> int:
        return len(self.origin)

    @overload
    def __getitem__(self, rows: Row) -> int: ...
    @overload
    def __getitem__(self, rows: Rows) -> Int32: ...
    def __getitem__(self, rows: Rows | Row) -> Any:
        asked = np.arange(len(self), dtype=np.int32)[rows] if isinstance(rows, slice) else np.asarray(rows)
        asked = np.flatnonzero(asked) if asked.dtype == np.bool_ else asked
        origin = self.origin[asked]
        start = np.atleast_1d(np.where(origin == UNKNOWN, asked, origin))
        return self.forest.around(start, self.marked, itself=self.itself).reshape(asked.shape)[()]


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """For each event the operator of the forward pass that the frame of autograd around it belongs to. frames: rows of
    the frames, in order; found: the operator of each."""

    frame: Around
    frames: Int32
    found: Int32

    def __len__(self) -> int:
        return len(self.frame)

    @overload
    def __getitem__(self, rows: Row) -> int: ...
    @overload
    def __getitem__(self, rows: Rows) -> Int32: ...
    def __getitem__(self, rows: Rows | Row) -> Any:
        frame: Any = self.frame[rows]
        at = np.searchsorted(self.frames, frame)
        return np.where(frame == UNKNOWN, UNKNOWN, np.append(self.found, np.int32(UNKNOWN))[at])[()]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """One value for each event of the table, in the table's order: the row of another event, or UNKNOWN. Read-only.
    Those that any event has are looked up when they are asked for: by rows, a mask or a slice, as in a column.

    launch: of a device activity (kernel, copy, memset), the runtime call with its correlation id. A graph launch owns
    all the kernels of the graph.
    parent: of a host event, the innermost operator, annotation or runtime call of its thread that encloses it.
    operator: the innermost operator: of a host event the enclosing one or itself, of a device activity the one around
    its launch (by "External id" where the trace holds no launch).
    annotation: the innermost annotation, alike (a module's, a user's, the optimizer's; not ProfilerStep).
    function: the innermost Python function of the user's (with_stack), alike; for what backward runs, that of the
    forward operator.
    forward: of an operator that the autograd engine runs, the operator of the forward pass with its sequence number.
    module: call of a module around it, or around its forward operator.
    step: index of the step in which a host event starts, or a device activity was launched; UNKNOWN outside all steps.
    """

    launch: Few
    parent: Around
    operator: Around
    annotation: Around
    function: Int32
    forward: Forward
    module: Int32
    step: Numbers


SPREAD = 8
"""Numbers are looked up in a table when their range is no wider than this many times their count."""


def latest_before(keys: Int64, times: Int64, wanted: Int64, moments: Int64, *, later: bool) -> Int64:
    """For each wanted number the position of the latest candidate that has it at or before its moment; without one that
    early, if `later` will do, the earliest that has it; else UNKNOWN.

    keys, times: of the candidates, in any order. Numbers are nearly always unique up to the moment, so the last
    candidate of each is tried first and only what that does not answer is sorted out."""
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
    """The last position of each wanted number among the keys, UNKNOWN where it is not."""
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
    """The rule of `latest_before` for numbers that all exist among the keys, by sorting both together."""
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
"""The last one is ours, also from a checkout (`pip install --editable`); the probe was in capture/ once."""
_LIBRARIES = """
torch torchvision torchaudio numpy pandas scipy sklearn PIL transformers accelerate datasets tokenizers lightning
pytorch_lightning lightning_fabric keras timm peft trl diffusers ignite fastai deepspeed megatron tqdm wandb mlflow
hydra click steptime lightning_utilities torchmetrics huggingface_hub safetensors
"""
LIBRARIES = frozenset(_LIBRARIES.split())
"""Kineto strips what is on sys.path from the file names, so packages are known by their first folder only."""


def is_user_file(file: str) -> bool:
    """True unless the file is of a library, of Python's own, or no file."""
    parts = PurePath(file).parts
    if file.startswith("<ipython-input-"):
        return True
    if not parts or file.startswith("<") or FOREIGN.search(file):
        return False
    top = parts[0].removesuffix(".py")
    return top not in LIBRARIES and top not in sys.stdlib_module_names


def source_line(symbol: str) -> SourceLine | None:
    """Line where the function of a frame starts; None for what is no Python function in a file."""
    found = FRAME.match(symbol)
    return SourceLine(found["file"], int(found["line"]), found["function"]) if found else None


def function_name(symbol: str) -> str:
    """The name of a Python function alone: "zoom_shift" of "<built-in function zoom_shift>", "forward" of
    "train.py(12): forward"; anything else as it is."""
    found = FRAME.match(symbol) or BUILT_IN.match(symbol)
    return found["function"] if found else symbol


def host_events(trace: Trace) -> Bool:
    """Which events happened on a thread of the host."""
    return trace.events.are(*HOST_CATEGORIES)


@cached_per_trace
def host_forest(trace: Trace) -> Forest:
    return forest_of(trace.events, np.flatnonzero(host_events(trace)).astype(np.int32))


@cached_per_trace
def running_before(trace: Trace) -> Bool:
    """Which Python functions had called the profiler's start when it began to record. Kineto enters them then, one
    within the other, and names each by the line at which it stood (profiler_python.cpp of torch): one that has nothing
    to do with what the function calls later."""
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
    """Nests some events, each track for itself. rows: in order."""
    parent = np.full(len(events), UNKNOWN, np.int32)
    for nested in by_track(events, rows):
        above = enclosing(events.start[nested], events.ends(nested))
        parent[nested] = np.where(above == ROOT, np.int32(UNKNOWN), nested[above])
    return Forest(parent)


def by_track(events: EventTable, rows: Int32) -> Iterator[Int32]:
    """The rows of one track after the other, parents before their children: only one track's times are copied at once.
    rows: in order."""
    if not len(rows):
        return
    counts = np.bincount(events.track[rows])
    ordered = rows[np.argsort(events.track[rows], kind="stable")]
    for mine in np.split(ordered, np.cumsum(counts)[:-1]):
        if len(mine):
            yield mine[nesting_order(events.start[mine], events.duration[mine])]


DEVICE = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
MODULE = re.compile("nn.Module: ")
"""So Kineto names the call of a module among the Python functions, and our own probe in its ranges."""


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """Roles of the host's events, one mask each over the whole table. engine: a frame of autograd's. module: a
    module's call, by our own ranges where there are some."""

    operator: Bool
    engine: Bool
    annotation: Bool
    function: Bool
    module: Bool


@cached_per_trace
def link(trace: Trace, boundaries: Int64, *, is_user: Callable[[str], bool] = is_user_file) -> Links:
    """Links all events of a trace. boundaries: (n, 2) ns, the steps on the host in time order, without overlap; may be
    empty. is_user: tells files of the user's, as the trace spells them, from libraries'."""
    roles = roles_of(trace, is_user)
    made = host_forest(trace)
    origin = origins_of(trace)
    forward = _forwards(trace, made, origin, roles)
    return Links(
        launch=launches_of(trace),
        parent=Around(made, few(nowhere(len(trace.events)), UNKNOWN), _not_python(trace), itself=False),
        operator=Around(made, origin, roles.operator),
        annotation=Around(made, origin, roles.annotation),
        function=_through(origin, _called_from(trace, made, roles.function, forward)),
        forward=forward,
        module=_through(origin, _called_from(trace, made, roles.module, forward)),
        step=_through(origin, _steps(trace, boundaries, launched=len(origin.rows) > 0)),
    )


@cached_per_trace
def roles_of(trace: Trace, is_user: Callable[[str], bool] = is_user_file) -> Roles:
    """Sorts the host's events. Files of 2021 list annotations among the operators; compiled code is only annotated."""
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
    of_user = np.array([frame is not None and is_user(frame["file"]) for frame in frames])
    function = python & looked_up(of_user, name) & ~running_before(trace)
    return Roles(operator, engine, annotation, function, ranges if ranges.any() else module)


def linked(trace: Trace) -> Trace:
    """The same trace that knows what launched what, and has let go of the numbers that said so."""
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
    """Map each activity of a device to the runtime call with the same correlation id, preferring calls whose name is a
    launch (HIP gives the calls around a launch its number too). Where neither has a correlation, their "External id" is
    it (roctracer's, as torch for ROCm writes it); that of an operator is another number then. Where they have no number
    at all, it is the call of the same place in the order of time."""
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
    """Map each activity of a device to the event of the host that it comes from: its launch or, where the trace holds
    none, the operator with its "External id"."""
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
    """The call of each activity of one stream, by their places in time: where there are as many calls that put work on
    a device, and none is later than what it launched. UNKNOWN for all else."""
    events = trace.events
    calls = called[of_symbols(trace, QUEUEING.match)[events.name[called]]] if len(called) else called
    calls, order = calls[np.argsort(events.start[calls], kind="stable")], np.argsort(events.start[rows], kind="stable")
    found, one = np.full(len(rows), UNKNOWN, np.int32), len(np.unique(events.track[rows])) == 1
    if one and len(calls) == len(rows) and (events.start[calls] <= events.start[rows[order]]).all():
        found[order] = calls
    return found


def _by_number(numbers: Numbers, start: Int64, candidates: Int32, rows: Int32) -> Int32:
    """The candidate with the number of each row, UNKNOWN where none has it."""
    at = latest_before(numbers[candidates], start[candidates], numbers[rows], start[rows], later=True)
    return np.where(at == UNKNOWN, np.int32(UNKNOWN), np.append(candidates, np.int32(UNKNOWN))[at])


def _not_python(trace: Trace) -> Bool:
    others: Bool = trace.events.event_kind != EventKind.PYTHON
    return np.broadcast_to(np.True_, others.shape) if others.all() else others


def _through(origin: Few, of_host: npt.NDArray[Width]) -> npt.NDArray[Width]:
    """Facts of the host's events, copied to the device's: those of the event that each comes from."""
    if of_host.flags.writeable:  # else no event has one
        of_host[origin.rows] = of_host[origin.values]
        of_host.flags.writeable = False
    return of_host


def _forwards(trace: Trace, made: Forest, origin: Few, roles: Roles) -> Forward:
    """The forward operator of what autograd runs, and the frame of autograd that runs it.

    The frame has the sequence number. Operators that record nothing carry the number of the next one that does, so the
    last one before the frame owns it. In backward gradients are off and its operators have no number; what has one
    there is run again by checkpointing, or differentiated twice, and owns it alike."""
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
    """The caller (a function of the user's, a module) around each event of the host.

    Around what backward runs there is only whoever called backward, so it is the forward operator's, unless a caller
    runs inside the frame itself: a hook, a custom function, checkpointing."""
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
    """The step in which each event starts; on a device, whose work may belong to another, where no launch is known."""
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
