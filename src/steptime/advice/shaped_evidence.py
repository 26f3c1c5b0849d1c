"""Calls of operators of which the time depends on shapes in a way that rules know (`ShapedUse`)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from steptime.advice.kernels import plain_name, shapes_of
from steptime.advice.run_uses import ShapedUse
from steptime.advice.savings import ratio, summed
from steptime.analysis.op_cost.op_cost import call_texts
from steptime.analysis.operators import OperatorUse, operator_calls, operator_events, source_of
from steptime.analysis.step_context import StepContext
from steptime.analysis.timeline import Phase
from steptime.arrays import Bool, Int32, Numbers
from steptime.quantities import SourceLine
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.links import UNKNOWN, host_forest, roles_of
from steptime.trace.table import ABSENT, Trace
from steptime.trace.vendors import MODULE_RANGE, matching

LOOKED_AT = frozenset({"unique_dim", "unique_consecutive", "bilinear", "conv2d", "embedding"})
"""Plain names of these operators."""
SMALLEST_WINDOW = 7
"""Numbers of a window in each dimension. Of smaller ones, and of those over several channels, no rule says anything."""
CONVOLVING_BACK = "aten::convolution_backward"
"""Operator that says by a mask of three whether weights get a gradient."""

_Call = tuple[str, str, str, str]
"""Name, and raw shapes, dtypes and settings of a call, as the trace has them."""


@dataclass(slots=True)
class _Calls:
    """Calls of one kind. count: number in all steps; duration: ns in all steps, scaled to steady ones. weights: True,
    False or both, by whether weights get a gradient."""

    count: int = 0
    duration: float = 0.0
    weights: set[bool] = field(default_factory=set[bool])
    source: SourceLine | None = None
    module: str = ""


def shaped_uses(
    steps: StepContext,
    stacks: Iterable[StepContext],
    profiled: Iterable[OperatorUse],
    steady: Iterable[OperatorUse],
) -> tuple[ShapedUse, ...]:
    """Operator calls by their arguments in profiled steps on a CPU, the longest first. stacks: windows with stacks, for
    source lines. profiled, steady: operators with their times in the profiled steps and in a steady step."""
    if steps.on_device or not _known(steps).any():
        return ()
    found: dict[_Call, _Calls] = defaultdict(_Calls)
    _add_times(steps, found, steady_shares(profiled, steady))
    for window in stacks:
        _add_sources(window, found)
    uses = (_use(call, calls, len(steps)) for call, calls in found.items() if calls.count)
    return tuple(sorted(uses, key=lambda use: -use.duration))


def steady_shares(profiled: Iterable[OperatorUse], steady: Iterable[OperatorUse]) -> Mapping[tuple[str, str], float]:
    """Time in a steady step as a fraction of that in a profiled one, by operator and phase."""
    before, after = (summed(((use.name, use.phase), use.duration) for use in uses) for uses in (profiled, steady))
    return {key: ratio(after.get(key, 0.0), spent) or 1.0 for key, spent in before.items()}


@cached_per_trace
def _known(window: StepContext) -> Bool:
    """Mask over the event table of the operators that are looked at."""
    named = matching(window.trace, lambda symbol: plain_name(symbol) in LOOKED_AT)
    return operator_events(window.trace) & ~roles_of(window.trace).engine & named


def _outermost(window: StepContext, rows: Numbers) -> Int32:
    """Outermost known operator around each row, or around the operator whose backward it is part of; UNKNOWN for
    none."""
    forward, forest, known = window.links.forward[rows], host_forest(window.trace), _known(window)
    around = forest.around(np.where(forward == UNKNOWN, rows, forward), known, itself=True)
    found = around.astype(np.int32)
    found[around != UNKNOWN] = forest.outermost(around[around != UNKNOWN], known)
    return found


def _calls(window: StepContext, found: dict[_Call, _Calls]) -> dict[int, _Calls]:
    """Calls that are looked at, by the rows of the event table."""
    rows = np.flatnonzero(_known(window) & (window.links.step != UNKNOWN))
    rows = rows[_outermost(window, rows) == rows]
    calls = {row: call_texts(window.trace, row) for row in rows.tolist()}
    kept = {call for call in {*calls.values()} if _is_looked_at(call)}
    return {row: found[call] for row, call in calls.items() if call in kept}


def _add_sources(window: StepContext, found: dict[_Call, _Calls]) -> None:
    trace, links, events = window.trace, window.links, window.trace.events
    for row, use in _calls(window, found).items():
        at = np.array([row])
        use.source = use.source or source_of(trace, links, at, events.duration[at])
        module = int(links.module[row])
        use.module = use.module or (_class(trace.symbols[events.name[module]]) if module != UNKNOWN else "")


def _add_times(window: StepContext, found: dict[_Call, _Calls], steady: Mapping[tuple[str, str], float]) -> None:
    trace, calls = window.trace, _calls(window, found)
    for use in calls.values():
        use.count += 1
    if not calls:
        return
    inside = operator_calls(window)
    owners, rows = _outermost(window, inside.rows).tolist(), inside.rows.tolist()
    for owner, row, spent, phase in zip(owners, rows, inside.duration.tolist(), inside.phase.tolist(), strict=True):
        if owner in calls:
            key = trace.symbols[trace.events.name[row]], Phase(phase).title
            calls[owner].duration += spent * steady.get(key, 1.0)
    convolving = np.flatnonzero(matching(trace, CONVOLVING_BACK.__eq__) & (window.links.step != UNKNOWN))
    for owner, row in zip(_outermost(window, convolving).tolist(), convolving.tolist(), strict=True):
        if owner in calls:
            calls[owner].weights.add(_takes_weights(trace, row))


def _takes_weights(trace: Trace, row: int) -> bool:
    """True if a backward of a convolution has a gradient for its weights, or does not show whether."""
    settings = listed_inputs(trace, row)
    mask = settings[-1].strip("[]").split(",") if settings else []
    return len(mask) != 3 or mask[1].strip() not in ("False", "0")


def listed_inputs(trace: Trace, row: int) -> tuple[str, ...]:
    """Arguments of a call as texts, "" for tensors; () if the trace has none."""
    return _listed(trace.inputs[at] if (at := int(trace.events.inputs[row])) != ABSENT else "")


def _listed(text: str) -> tuple[str, ...]:
    """Parts of a list in JSON as texts; () where it is none."""
    try:
        read = json.loads(text) if text else []
    except ValueError:
        read = []
    return tuple(map(str, read)) if isinstance(read, list) else ()


def _class(symbol: str) -> str:
    """Class of a module, of a range of the probe's or of Kineto's name for its call."""
    whole = MODULE_RANGE.match(symbol)
    return whole["type"] if whole is not None else symbol.partition(": ")[2].rpartition("_")[0]


def _use(call: _Call, calls: _Calls, steps: int) -> ShapedUse:
    name, shapes, dtypes, inputs = call
    return ShapedUse(
        plain_name(name),
        shapes_of(shapes),
        _listed(dtypes),
        _listed(inputs),
        calls.count / steps,
        calls.duration / steps,
        any(calls.weights),
        calls.source,
        calls.module,
    )


def _is_looked_at(call: _Call) -> bool:
    name, shapes, settings = plain_name(call[0]), shapes_of(call[1]), _listed(call[3])
    if name == "conv2d":
        weights = shapes[1] if len(shapes) > 1 else ()
        return len(weights) == 4 and weights[1] == 1 and min(weights[2:]) >= SMALLEST_WINDOW
    return name != "embedding" or settings[4:5] == ("True",)
