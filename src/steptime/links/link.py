"""Linking: from the columns of a trace to who encloses, launched, computed or caused whom.

The host's events are nested once, all lanes together; what else they are asked (the innermost operator, annotation,
user's function) are walks up that forest, which double their stride each round. No loop goes over events.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int32, Int64
from steptime.kineto.once import once
from steptime.kineto.table import ABSENT, Category, Trace
from steptime.links.forest import Forest, host_events, host_forest, running_before
from steptime.links.frames import is_user_file, user_functions
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import ANNOTATION, STEP, is_compiled, is_engine, of_symbols
from steptime.links.partners import latest_before

DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
MODULE = "nn.Module: "
"""So Kineto names the call of a module among the Python functions."""
LAUNCHING = re.compile(r"Launch|Memcpy|Memset|Prefetch|Enqueue")


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """What the events of the host are, one mask each over the whole table. engine: a frame of autograd's."""

    operator: Bool
    engine: Bool
    annotation: Bool
    function: Bool


@once
def link(trace: Trace, borders: Int64, *, is_user: Callable[[str], bool] = is_user_file) -> Links:
    """Links all events of a trace. borders: (n, 2) ns, the steps on the host in time order, without overlap; may be
    empty. is_user: tells files of the user's, as the trace spells them, from libraries'.
    """
    roles = roles_of(trace, is_user)
    made = host_forest(trace)
    launch = launches_of(trace)
    origin = _origins(trace, launch)
    forward, frame = _forwards(trace, made, roles)
    return Links(
        launch=launch,
        parent=made.enclosing(trace.events.category != Category.PYTHON),
        operator=_through(origin, made.nearest(roles.operator)),
        annotation=_through(origin, made.nearest(roles.annotation)),
        function=_through(origin, _functions(trace, made, roles, forward, frame)),
        forward=_through(origin, forward),
        step=_through(origin, _steps(trace, borders, launched=bool((origin != UNKNOWN).any()))),
    )


def roles_of(trace: Trace, is_user: Callable[[str], bool] = is_user_file) -> Roles:
    """Sorts the host's events. Files of 2021 list annotations among the operators; compiled code is only annotated."""
    category, name = trace.events.category, trace.events.name
    listed, noted, python = (category == each for each in (Category.OPERATOR, Category.ANNOTATION, Category.PYTHON))
    compiled, annotated = of_symbols(trace, is_compiled), of_symbols(trace, ANNOTATION.match)
    modules = of_symbols(trace, lambda symbol: symbol.startswith(MODULE))
    steps = of_symbols(trace, STEP.match)
    if not len(trace.symbols):
        return Roles(listed, listed, listed, listed)
    operator = (listed & ~annotated[name]) | (noted & compiled[name])
    annotation = ((listed | noted) & ~operator & ~steps[name]) | (python & modules[name])
    engine = operator & of_symbols(trace, is_engine)[name]
    function = python & user_functions(trace, is_user)[name] & ~running_before(trace)
    return Roles(operator, engine, annotation, function)


@once
def launches_of(trace: Trace) -> Int32:
    """Of each activity of a device, the runtime call with its correlation: one that launches by its name, before others
    (HIP gives the calls around a launch its number too)."""
    events = trace.events
    found = np.full(len(events), UNKNOWN, np.int32)
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation != ABSENT))
    launching = of_symbols(trace, LAUNCHING.search)[events.name[calls]] if len(calls) else np.empty(0, np.bool_)
    for candidates in (calls[launching], calls[~launching]):
        open_ended = np.isin(events.category, DEVICE) & (events.correlation != ABSENT) & (found == UNKNOWN)
        _by_number(events.correlation, events.begin, candidates, np.flatnonzero(open_ended), found)
    return found


def _origins(trace: Trace, launch: Int32) -> Int32:
    """Of each activity of a device the event of the host that says where it comes from: its launch or, where the trace
    holds none, the operator with its "External id"."""
    events = trace.events
    origin = launch.copy()
    lost = np.isin(events.category, DEVICE) & (launch == UNKNOWN) & (events.external != ABSENT)
    operators = np.flatnonzero((events.category == Category.OPERATOR) & (events.external != ABSENT))
    _by_number(events.external, events.begin, operators, np.flatnonzero(lost), origin)
    return origin


def _by_number(
    numbers: Int64, begin: Int64, candidates: Int64, rows: Int64, found: Int32, *, later: bool = True
) -> None:
    """Writes into found[rows] the candidate with the row's number. later: one that begins after the row counts too."""
    at = latest_before(numbers[candidates], begin[candidates], numbers[rows], begin[rows], later=later)
    known = at != UNKNOWN
    found[rows[known]] = candidates[at[known]]


def _through(origin: Int32, of_host: Int32) -> Int32:
    """What is known of the host's events, for the device's too: what is known of where they come from."""
    known = np.flatnonzero(origin != UNKNOWN)
    of_host[known] = of_host[origin[known]]
    of_host.flags.writeable = False
    return of_host


def _forwards(trace: Trace, made: Forest, roles: Roles) -> tuple[Int32, Int32]:
    """By row: the forward operator of what autograd runs, and the frame of autograd that runs it.

    The frame has the sequence number. Operators that record nothing carry the number of the next one that does, so the
    last one before the frame owns it. In backward gradients are off and its operators have no number; what has one
    there is run again by checkpointing, or differentiated twice, and owns it alike.
    """
    events = trace.events
    numbered = events.sequence != ABSENT
    framed = made.nearest(roles.engine & numbered)
    frames = np.flatnonzero(roles.engine & numbered)
    operators = np.flatnonzero(roles.operator & ~roles.engine & numbered)
    forward = np.full(len(events), UNKNOWN, np.int32)
    _by_number(events.sequence, events.begin, operators, frames, forward, later=False)
    inside = np.flatnonzero(framed != UNKNOWN)
    forward[inside] = forward[framed[inside]]
    return forward, framed


def _functions(trace: Trace, made: Forest, roles: Roles, forward: Int32, frame: Int32) -> Int32:
    """The user's function around each event of the host.

    Around what backward runs there is only whoever called backward, so it is the forward operator's, unless a function
    runs inside the frame itself: a hook, a custom function, checkpointing.
    """
    around = made.nearest(roles.function)
    if not roles.function.any():
        return around
    begin = trace.events.begin
    called = (frame != UNKNOWN) & (forward != UNKNOWN) & ((around == UNKNOWN) | (begin[around] < begin[frame]))
    source = np.where(called, forward, np.arange(len(forward), dtype=np.int32))
    walking = np.flatnonzero(called)
    while len(walking):  # a forward operator begins before its frame, so this ends
        reached = source[source[walking]]
        moved = reached != source[walking]
        source[walking] = reached
        walking = walking[moved]
    return np.where(around[source] == UNKNOWN, around, around[source])


def _steps(trace: Trace, borders: Int64, *, launched: bool) -> Int32:
    """The step in which each event begins. On a device that is not the step it belongs to, and only counts where the
    trace holds none of the launches."""
    events = trace.events
    known = host_events(trace) if launched else host_events(trace) | np.isin(events.category, DEVICE)
    step = (np.searchsorted(borders[:, 0], events.begin, side="right") - 1).astype(np.int32)
    ends = borders[:, 1] if len(borders) else np.zeros(1, np.int64)
    step[~known | (events.begin >= ends[step])] = UNKNOWN
    return step
