"""User functions in the steps of a trace with Python stacks: the time of each by phase, and what it calls.

Stacks slow steps, most of all in functions with many calls: their times are good as fractions only.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.operators import DISPATCH_GAP, grouped, operator_events, phases_at, step_at
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import during
from steptime.analysis.timeline import Phase, PhaseName
from steptime.arrays import Bool, Int64, looked_up
from steptime.intervals import Intervals, measure, subtract, union
from steptime.quantities import SourceLine
from steptime.trace.call_tree import ROOT, CallTree, call_tree, exclusive_spans, nearest_ancestor
from steptime.trace.links import FRAME, UNKNOWN, host_forest, is_user_file, roles_of, source_line
from steptime.trace.table import ABSENT, EventKind, Trace
from steptime.trace.vendors import PROFILER, TORCH_FRAME, matching, of_symbols

MOST_CALLED = 8
"""Most calls that are kept of a function in one phase, by time."""
WRITES_FILES = re.compile(r"(^|/)torch/serialization\.py\(\d+\): ")
"""Functions of torch's own Python that do the work themselves, as a library's do."""
BUILT_IN = re.compile(r"<built-in (?:function|method) (?P<name>\w+)(?: of (?P<kind>[\w.]+) object.*)?")
PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|lib/python\d[\d.]*)/")


@dataclass(frozen=True, slots=True)
class CallUse:
    """Calls that a user function makes to one operator, or to one function that is not the user's, with all that runs
    below them but user functions. name: "aten::sort", "json.dumps"; "" for the function's own Python. calls, duration:
    number and ns per step. shapes: input shapes of the calls with most of the time, as the trace has them, "" if
    unknown. depth: number of nested calls of this name that one call leads to, itself included; shallow: the same in
    the trace in which it is smallest."""

    name: str
    calls: float
    duration: float
    shapes: str = ""
    depth: float = 1.0
    shallow: float = 1.0


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """Time of a user function in one phase, without user functions that it calls. source: its first line, None for time
    in no user function. python: ns per step outside operators, in intervals longer than a dispatch, in the function and
    in library callees except torch; operators: ns per step in operators that it calls (in backward, in what autograd
    runs for them). called: its direct calls, the longest first. A loop that started before the trace is in no user
    function."""

    source: SourceLine | None
    phase: PhaseName
    python: float
    operators: float
    called: tuple[CallUse, ...] = ()


def function_uses(windows: Iterable[StepContext]) -> tuple[FunctionUse, ...]:
    """Time of the user functions in the windows with stacks, the longest first."""
    spent: defaultdict[_Key, Int64] = defaultdict(lambda: np.zeros(2, np.int64))
    called: defaultdict[_Key, dict[str, CallUse]] = defaultdict(dict)
    steps = 0
    for window in windows:
        if window.stacks and len(window) and window.track is not None:
            steps += len(window)
            _add(window, window.track, spent, called)
    uses = (
        FunctionUse(key[0], key[1].title, float(python) / steps, float(operators) / steps, _longest(called[key], steps))
        for key, (python, operators) in spent.items()
    )
    return tuple(sorted(uses, key=lambda use: -use.python - use.operators))


LEAST_EXTRA, MOST_EXTRA = 0.1, 3
"""Fraction of what slow steps take longer, for one operator to be named; most that are."""
SLOW_STEPS_OWN = 4
"""Times the calls of another step, for an operator to be a slow step's own: one of these may have been slow, too."""


def extra_calls(windows: Iterable[StepContext], longer: float) -> tuple[tuple[CallUse, ...], tuple[str, ...]]:
    """(operators by which slow steps are longer than the others of the windows without stacks, the longest first; names
    of all operators, inner ones too, that only slow steps have). The operators' calls and durations are those of a slow
    step beyond another step's. longer: ns by which a slow step is longer."""
    steps: list[tuple[int, dict[str, CallUse], Counter[str]]] = []
    for window in windows:
        if not window.stacks and window.track is not None:
            durations = (window.boundaries[:, 1] - window.boundaries[:, 0]).tolist()
            steps += zip(durations, *_by_step(window), strict=True)
    least = min((duration for duration, _, _ in steps), default=0) + longer / 2
    slow, others = ([step[1:] for step in steps if (step[0] > least) is which] for which in (True, False))
    lasted = [[step[0] for step in steps if (step[0] > least) is which] for which in (True, False)]
    if not slow or not others:
        return (), ()
    profiled = sum(lasted[0]) / len(slow) - sum(lasted[1]) / len(others)
    scale = min(1.0, longer / profiled)  # profiled steps are longer than others
    own, usual = (sum((counts for _, counts in each), Counter[str]()) for each in (slow, others))
    alone = [name for name, count in own.items() if count / len(slow) >= SLOW_STEPS_OWN * usual[name] / len(others)]
    extra = []
    for name in {name for uses, _ in slow for name in uses}:
        first, second = (_mean_of(name, [uses for uses, _ in each]) for each in (slow, others))
        known = max((uses[name] for uses, _ in slow if name in uses), key=lambda use: use.duration)
        extra.append(replace(known, calls=first[0] - second[0], duration=scale * (first[1] - second[1])))
    extra = [use for use in extra if use.duration >= LEAST_EXTRA * longer and use.calls > 0]
    return tuple(sorted(extra, key=lambda use: -use.duration)[:MOST_EXTRA]), tuple(sorted(alone))


def _mean_of(name: str, steps: list[dict[str, CallUse]]) -> tuple[float, float]:
    found = [uses[name] for uses in steps if name in uses]
    return sum(use.calls for use in found) / len(steps), sum(use.duration for use in found) / len(steps)


def _by_step(window: StepContext) -> tuple[list[dict[str, CallUse]], list[Counter[str]]]:
    """Outermost operators of each step, by name; calls of all operators of each step."""
    trace, operators = window.trace, operator_events(window.trace) & ~roles_of(window.trace).engine
    rows = np.flatnonzero(operators & np.isin(trace.events.track, window.tracks))
    outer = host_forest(trace).around(rows, operators, itself=False) == UNKNOWN
    step, names = step_at(window.boundaries, trace.events.start[rows]), trace.events.name[rows].astype(np.int64)
    found: list[dict[str, CallUse]] = [{} for _ in range(len(window))]
    called = [Counter[str]() for _ in range(len(window))]
    for chosen in grouped(step, names):
        number, name = int(step[chosen[0]]), trace.symbols[int(names[chosen[0]])]
        if number != UNKNOWN:
            called[number][name] = len(chosen)
            mine = rows[chosen[outer[chosen]]]
            if len(mine):
                spent = float(trace.events.duration[mine].sum())
                found[number][name] = CallUse(name, float(len(mine)), spent, _usual_shapes(trace, mine))
    return found, called


_Key = tuple[SourceLine | None, Phase]


def _longest(called: dict[str, CallUse], steps: int) -> tuple[CallUse, ...]:
    """Calls per step, from their sums."""
    ranked = sorted(called.values(), key=lambda use: -use.duration)[:MOST_CALLED]
    return tuple(replace(use, calls=use.calls / steps, duration=use.duration / steps) for use in ranked)


def _add(
    window: StepContext, track: int, spent: dict[_Key, Int64], called: defaultdict[_Key, dict[str, CallUse]]
) -> None:
    trace, links = window.trace, window.links
    calls = operator_events(trace) | (trace.events.event_kind == EventKind.PYTHON)  # an annotation outlasts the call
    rows = np.flatnonzero(calls & (trace.events.track == track))  # that starts it
    tree = call_tree(trace.events.start[rows], trace.events.ends(rows))
    rows, spans = rows[tree.rows], exclusive_spans(tree)
    owner, length = rows[spans.owner], spans.end - spans.start
    inside = step_at(window.boundaries, spans.start) != UNKNOWN
    working = links.operator[owner] != UNKNOWN
    python = measure(_outside_operators(window, track), spans.start, spans.end)
    function = np.where(working, links.function[owner], _python_of(trace)[owner])
    name = np.where(function == UNKNOWN, UNKNOWN, trace.events.name[function].astype(np.int64))
    phase = phases_at(window, spans.start)
    for key in np.unique(np.stack((name, phase), axis=1)[inside], axis=0).tolist():
        chosen = inside & (name == key[0]) & (phase == key[1])
        spent[_key(trace, *key)] += (python[chosen & ~working].sum(), length[chosen & working].sum())
    names = trace.events.name[rows].astype(np.int64)
    caller, call = _calls_of_user(trace, tree, rows)
    again = np.bincount(call[(call != ROOT) & (names == names[call])], minlength=len(rows))
    inside &= (caller == ROOT)[spans.owner] | roles_of(trace).function[rows[caller[spans.owner]]]
    caller, call = caller[spans.owner], call[spans.owner]
    name, called_by = _or_none(names, call), _or_none(names, caller)
    among_steps = np.flatnonzero(inside)
    for group in grouped(called_by[inside], phase[inside], name[inside]):
        chosen = among_steps[group]
        first = int(chosen[0])
        use = _call_use(trace, rows, call[chosen], length[chosen], again)
        uses = called[_key(trace, int(called_by[first]), int(phase[first]))]
        known = uses.get(use.name)
        if known is not None:
            longer = max(known, use, key=lambda each: each.duration)
            both = known.calls + use.calls, known.duration + use.duration
            depths = known.depth, use.depth
            use = replace(longer, calls=both[0], duration=both[1], depth=max(depths), shallow=min(depths))
        uses[use.name] = use


def _key(trace: Trace, name: int, phase: int) -> _Key:
    return source_line(trace.symbols[name]) if name != UNKNOWN else None, Phase(phase)


def _or_none(names: Int64, position: Int64) -> Int64:
    return np.where(position == ROOT, UNKNOWN, names[position])


def _calls_of_user(trace: Trace, tree: CallTree, rows: Int64) -> tuple[Int64, Int64]:
    """(innermost user function or frame of autograd, what it calls) around each position of a tree, by position, ROOT
    for none. What it calls is the outermost operator or library function below it. Among Python's own functions and
    torch's Python, which mostly lead to operators, it is the outermost. rows: of the positions."""
    roles, python = roles_of(trace), trace.events.event_kind[rows] == EventKind.PYTHON
    user = roles.function[rows] | roles.engine[rows]
    own = np.array([_is_library(symbol) for symbol in trace.symbols])[trace.events.name[rows]]
    working = (roles.operator & ~roles.engine)[rows] | (python & own)
    framed = of_symbols(trace, lambda symbol: (found := FRAME.match(symbol)) and is_user_file(found["file"]))
    other = python & ~user & ~looked_up(framed, trace.events.name[rows])  # frames of the loop are the user's, too
    first, second = (_outermost(tree, marked, user) for marked in (working, other))
    return nearest_ancestor(tree.parent, user).astype(np.int64), np.where(first == ROOT, second, first)


def _outermost(tree: CallTree, marked: Bool, user: Bool) -> Int64:
    """Outermost marked position around each one that is inside its innermost caller; ROOT for none. user: callers."""
    above = nearest_ancestor(tree.parent, marked | user)
    strictly = np.where(tree.parent == ROOT, ROOT, above[tree.parent])
    outer = marked & ~user & ((strictly == ROOT) | user[strictly])
    found = nearest_ancestor(tree.parent, outer | user)
    return np.where((found != ROOT) & outer[found], found, ROOT).astype(np.int64)


def _is_library(symbol: str) -> bool:
    """True for a function in a file that is neither the user's nor torch's; torch's writing of files is one."""
    frame = FRAME.match(symbol)
    if frame is None or is_user_file(frame["file"]) or PROFILER.match(symbol):
        return False
    return WRITES_FILES.search(symbol) is not None or not TORCH_FRAME.search(symbol)


def _call_use(trace: Trace, rows: Int64, call: Int64, length: Int64, again: Int64) -> CallUse:
    """Calls of one name, in all steps. call, length: of each span in it; again: calls of its own name at each
    position, itself included."""
    if call[0] == ROOT:
        return CallUse("", 0.0, float(length.sum()))
    each = np.unique(call)
    depth = float(again[each].mean())
    return CallUse(
        called_name(trace.symbols[int(trace.events.name[rows[each[0]]])]),
        float(len(each)),
        float(length.sum()),
        _usual_shapes(trace, rows[each]),
        depth,
        depth,
    )


def _usual_shapes(trace: Trace, rows: Int64) -> str:
    """Shapes with most of these operators' time; "" if unknown."""
    shapes = trace.events.shapes[rows].astype(np.int64)
    kinds, kind = np.unique(shapes, return_inverse=True)
    most = int(kinds[np.bincount(kind, trace.events.duration[rows]).argmax()])
    return trace.shapes[most] if most != ABSENT else ""


def called_name(symbol: str) -> str:
    """Name of a call as a reader writes it: "json.dumps" for "json/__init__.py(183): dumps", "list.sort" for a
    built-in. An operator's name is its symbol."""
    if (frame := FRAME.match(symbol)) is not None:
        module = PACKAGES.sub("", frame["file"]).removesuffix(".py").removesuffix("/__init__").strip("/")
        return f"{module.replace('/', '.')}.{frame['function']}"
    if (built_in := BUILT_IN.match(symbol)) is not None:
        kind = built_in["kind"]
        return f"{kind}.{built_in['name']}" if kind and kind != "type" else built_in["name"]
    return symbol


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
