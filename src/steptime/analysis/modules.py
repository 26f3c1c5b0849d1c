"""Time of each module of the model in a trace's steps, as a tree: its calls in forward, and what autograd ran for them.

A module's time is that of its whole subtree, counted once, so no part is larger than its whole. On a device it is the
time of what the module's operators launched. Backward belongs to the module whose forward operator has the same
sequence number; forwards that checkpointing reruns belong to backward. Gradient accumulation and operators outside of
all modules belong to no module.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from steptime.analysis.operators import operator_calls, worked
from steptime.analysis.step_context import StepContext
from steptime.arrays import Int64, unique
from steptime.intervals import EMPTY, Intervals, join, subtract, union
from steptime.trace.links import DEVICE, UNKNOWN, host_forest
from steptime.trace.table import Trace
from steptime.trace.vendors import MODULE_RANGE, is_engine, matching

MOST_MODULES = 400
"""Most modules, by time. Any further module is inside of one that is kept."""
KINETO = "nn.Module: "


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """Time and memory of a module with all modules inside it, per step. path: "Net.layer1.0"; depth: depth in the tree
    of modules. calls: number of calls. forward, backward: ns, on the device if there is one. share: fraction of the
    step. flops: FLOPs of both passes, None if no operator has a model. parameters: number of values; kept: bytes that a
    call's forward allocates and leaves allocated, None if not recorded. without_update: number of parameter values that
    get gradients and are in no optimizer."""

    path: str
    type: str
    depth: int
    calls: float
    forward: float
    backward: float
    share: float
    flops: float | None = None
    parameters: int = 0
    parameter_bytes: int = 0
    kept: float | None = None
    without_update: int = 0


@dataclass(slots=True, eq=False)
class _ModuleTime:
    """Time of a module with all below it, over all steps. first: start of its first call, ns."""

    first: int = np.iinfo(np.int64).max
    forward: list[Intervals] = field(default_factory=list)
    backward: list[Intervals] = field(default_factory=list)
    flops: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCalls:
    """Calls of modules in a trace. rows: row of each call in the event table; path: index in `paths` of each call's
    module. types: class of the module at each path."""

    rows: Int64
    path: Int64
    paths: tuple[str, ...]
    types: tuple[str, ...]

    def of(self, module: Int64) -> Int64:
        """Index of the module's path for each event, UNKNOWN for none. module: row of the module call around each
        event."""
        if not len(self.rows):
            return np.full(len(module), UNKNOWN)
        at = np.minimum(np.searchsorted(self.rows, module), len(self.rows) - 1)
        return np.where(self.rows[at] == module, self.path[at], UNKNOWN)


def module_calls(steps: StepContext) -> ModuleCalls:
    """Calls of modules in the steps, by row. Our own ranges contain the path; Kineto numbers the modules of a class."""
    trace, module = steps.trace, steps.links.module
    within_one = np.flatnonzero(module != UNKNOWN)
    rows = within_one[module[within_one] == within_one]
    mask = np.zeros(len(module), np.bool_)
    mask[rows] = True
    around = host_forest(trace).around(rows, mask, itself=False).tolist()
    known: dict[int, str] = {}
    numbers: dict[str, int] = {}
    types: list[str] = []
    order = np.lexsort((-trace.events.ends(rows), trace.events.start[rows]))
    for at in order.tolist():  # callers before what they call
        symbol = trace.symbols[trace.events.name[rows[at]]]
        ours, name = MODULE_RANGE.match(symbol), symbol.removeprefix(KINETO)
        outer = known.get(around[at])
        path = ours["path"] if ours else f"{outer}.{name}" if outer else name
        known[int(rows[at])] = path
        if path not in numbers:
            numbers[path] = len(numbers)
            types.append(ours["type"] if ours else name.rpartition("_")[0] or name)
    path_of = np.array([numbers[known[row]] for row in rows.tolist()], np.int64)
    return ModuleCalls(rows, path_of, tuple(numbers), tuple(types))


def within(path: str) -> Iterator[str]:
    """Yields the path and the paths of the modules around it, the innermost first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def module_uses(
    steps: StepContext,
    known: Iterable[tuple[str, str, int, int]] = (),
    kept: Mapping[str, float] | None = None,
    without_update: Iterable[tuple[str, int]] = (),
) -> tuple[ModuleUse, ...]:
    """Time and memory of the modules, in the order of their calls, each before the modules inside it. known: (path,
    class, number of values, bytes) of each module's own parameters; without_update: (path, number of values). kept:
    bytes by path, as in `ModuleUse`."""
    calls = module_calls(steps)
    if not len(steps) or not len(calls.rows):
        return ()
    spent: defaultdict[str, _ModuleTime] = defaultdict(_ModuleTime)
    _add_times(steps, calls, spent)
    _add_flops(steps, calls, spent)
    types = dict(zip(calls.paths, calls.types, strict=True))
    owned = defaultdict[str, Int64](lambda: np.zeros(2, np.int64))
    for path, kind, numbers, size in known:
        types.setdefault(path, kind)
        for each in within(path):
            owned[each] += (numbers, size)
    left = Counter[str]()
    for path, numbers in without_update:
        left.update(dict.fromkeys(within(path), numbers))
    counted = np.bincount(calls.path[steps.links.step[calls.rows] != UNKNOWN], minlength=len(calls.paths))
    counts = dict(zip(calls.paths, counted.tolist(), strict=True))
    wall = float((steps.windows[:, 1] - steps.windows[:, 0]).sum())
    uses = {}
    for path, found in spent.items():
        forward, backward = _length(found.forward), _length(found.backward)
        uses[path] = ModuleUse(
            path=path,
            type=types.get(path, ""),
            depth=path.count("."),
            calls=counts.get(path, 0) / len(steps),
            forward=forward / len(steps),
            backward=backward / len(steps),
            share=(_length([*found.forward, *found.backward]) if forward and backward else forward + backward) / wall,
            flops=found.flops / len(steps) if found.flops is not None else None,
            parameters=int(owned[path][0]),
            parameter_bytes=int(owned[path][1]),
            kept=kept.get(path, 0.0) if kept is not None else None,
            without_update=left[path],
        )
    return _as_tree(uses, {path: found.first for path, found in spent.items()})


def _as_tree(uses: Mapping[str, ModuleUse], first: Mapping[str, int]) -> tuple[ModuleUse, ...]:
    """MOST_MODULES modules with the most time, in tree order. The modules around each kept one are kept too."""
    longest = sorted(uses.values(), key=lambda use: (-use.share, use.depth))[:MOST_MODULES]
    places = {use.path: tuple((first[path], path) for path in reversed([*within(use.path)])) for use in longest}
    return tuple(sorted(longest, key=lambda use: places[use.path]))


def _length(several: list[Intervals]) -> int:
    held = join(*several)
    return int((held.end - held.start).sum())


def _add_times(steps: StepContext, calls: ModuleCalls, spent: defaultdict[str, _ModuleTime]) -> None:
    trace, links = steps.trace, steps.links
    module = links.module.astype(np.int64)
    counted = links.step != UNKNOWN
    behind = links.forward[:] != UNKNOWN  # in a frame of autograd
    again = calls.rows[behind[calls.rows]]
    rerun = union(trace.events.start[again], trace.events.ends(again))
    if steps.on_device:
        work = np.flatnonzero(trace.events.are(*DEVICE) & counted)
        _add(trace, calls, spent, work[~behind[work]], module[work[~behind[work]]], "forward")
        _add(trace, calls, spent, work[behind[work]], module[work[behind[work]]], "backward")
    else:
        first, frames = calls.rows[~behind[calls.rows]], np.flatnonzero(matching(trace, is_engine) & behind & counted)
        first, again = first[counted[first]], again[counted[again]]
        _add(trace, calls, spent, first, first, "forward")
        _add(trace, calls, spent, frames, module[frames], "backward", without=rerun)
        _add(trace, calls, spent, again, again, "backward")
    for row, path in zip(calls.rows.tolist(), calls.path.tolist(), strict=True):
        for each in within(calls.paths[path]):
            if each in spent:
                spent[each].first = min(spent[each].first, int(trace.events.start[row]))


def _add(
    trace: Trace,
    calls: ModuleCalls,
    spent: defaultdict[str, _ModuleTime],
    rows: Int64,
    module: Int64,
    kind: str,
    *,
    without: Intervals = EMPTY,
) -> None:
    """Adds the time of events to their modules and those around these. module: row of the call around each event."""
    owner = calls.of(module)
    for number in unique(owner[owner != UNKNOWN]).tolist():
        mine = rows[owner == number]
        held = subtract(union(trace.events.start[mine], trace.events.ends(mine)), without)
        for path in within(calls.paths[number]):
            getattr(spent[path], kind).append(held)


def _add_flops(steps: StepContext, calls: ModuleCalls, spent: defaultdict[str, _ModuleTime]) -> None:
    made = operator_calls(steps)
    owner = calls.of(steps.links.module[made.rows].astype(np.int64))
    flops = worked(steps.trace, steps.links, made).flops
    modelled = (owner != UNKNOWN) & ~np.isnan(flops)
    for number in unique(owner[modelled]).tolist():
        total = float(flops[modelled & (owner == number)].sum())
        for path in within(calls.paths[number]):
            if path in spent:
                spent[path].flops = (spent[path].flops or 0.0) + total
