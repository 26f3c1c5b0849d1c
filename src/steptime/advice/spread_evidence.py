"""Operators on tensors of all pairs: two smaller tensors broadcast against each other, and summed up (`SpreadUse`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from steptime.advice.kernels import elements, plain_name, shapes_of
from steptime.advice.run_uses import SpreadUse
from steptime.advice.shaped_evidence import listed_inputs, steady_shares
from steptime.analysis.operators import OperatorUse, operations_on, operator_calls, operator_events, source_of
from steptime.analysis.step_context import StepContext
from steptime.analysis.timeline import Phase
from steptime.arrays import Bool
from steptime.quantities import SourceLine
from steptime.trace.call_tree import ROOT, nearest_ancestor
from steptime.trace.links import UNKNOWN
from steptime.trace.table import ABSENT, Trace
from steptime.trace.vendors import matching

SUBTRACTING, MULTIPLYING = frozenset({"sub", "rsub", "pairwise_distance"}), frozenset({"mul", "cosine_similarity"})
PAIRING = SUBTRACTING | MULTIPLYING
MEASURING = frozenset({"pow", "square", "abs", "norm", "linalg_vector_norm", "pairwise_distance"})
"""What makes a distance of differences."""
SUMMING = frozenset({"sum", "mean", "norm", "linalg_vector_norm", "pairwise_distance", "cosine_similarity"})
TIMES, SMALLEST = 8, 1 << 14
"""Times as many numbers as in either input, and numbers, from which on a tensor is one of all pairs."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Alike:
    """Calls of an operator with equal shapes in a phase. name: as the trace has it. duration: ns in all steps."""

    name: str
    phase: str
    shapes: tuple[Shape, ...]
    duration: int
    count: int


def spread_uses(
    steps: StepContext,
    stacks: Iterable[StepContext],
    profiled: Iterable[OperatorUse],
    steady: Iterable[OperatorUse],
) -> tuple[SpreadUse, ...]:
    """Tensors of all pairs in profiled steps on a CPU, those with most time first. Arguments: as of `shaped_uses`."""
    if steps.on_device:
        return ()
    calls, shares = _calls(steps), steady_shares(profiled, steady)
    paired = _paired(calls, _expanded(steps))
    sources, uses = _sources(stacks, paired), []
    for shape, pairing in paired.items():
        own = [call for call in calls if call in pairing or shape in call.shapes]
        forward = {plain_name(call.name) for call in own if call.phase != Phase.BACKWARD.title}
        subtracts = any(plain_name(call.name) in SUBTRACTING for call in pairing)
        if forward & SUMMING and (not subtracts or forward & MEASURING):
            spent = sum(call.duration * shares.get((call.name, call.phase), 1.0) for call in own)
            use = SpreadUse(
                "distance" if subtracts else "product",
                shape,
                sum(call.count for call in pairing) / len(steps),
                spent / len(steps),
                sources.get(shape),
            )
            uses.append(use)
    return tuple(sorted(uses, key=lambda use: -use.duration))


def _calls(window: StepContext) -> list[_Alike]:
    """Calls of the window's operators by their shapes, without those of which the shapes are not known."""
    trace, calls = window.trace, operator_calls(window)
    events = trace.events
    keys = np.stack((events.name[calls.rows], events.shapes[calls.rows], calls.phase))
    kinds, which = np.unique(keys, axis=1, return_inverse=True)
    which, count = which.ravel(), kinds.shape[1]
    spent = np.bincount(which, calls.duration, count).astype(np.int64).tolist()
    counts = np.bincount(which, minlength=count).tolist()
    found = zip(kinds.T.tolist(), spent, counts, strict=True)
    return [
        _Alike(trace.symbols[name], Phase(phase).title, shapes_of(trace.shapes[shapes]), duration, number)
        for (name, shapes, phase), duration, number in found
        if shapes != ABSENT
    ]


def _expanded(window: StepContext) -> Counter[Shape]:
    """Shapes that smaller tensors are expanded to outside of backward, and how often. What an operator expands for
    itself (the mask of attention, for one matmul with it) meets no other tensor."""
    trace, links = window.trace, window.links
    expands = matching(trace, lambda symbol: plain_name(symbol) == "expand") & (links.step != UNKNOWN)
    pairing = matching(trace, lambda symbol: plain_name(symbol) in PAIRING)
    found: Counter[Shape] = Counter()
    rows = np.fromiter(_not_inside(window, expands, pairing), np.int64)
    for row in rows[links.forward[rows] == UNKNOWN].tolist():
        given = _shapes(trace, row)
        sizes = shapes_of(next(iter(listed_inputs(trace, row)[1:2]), ""))
        if given and sizes:
            kept = (1,) * (len(sizes[0]) - len(given[0])) + given[0]
            shape = tuple(old if new < 0 else new for new, old in zip(sizes[0], kept, strict=False))
            found[shape] += elements(shape) >= TIMES * elements(given[0])
    return found


def _not_inside(window: StepContext, chosen: Bool, allowed: Bool) -> Iterator[int]:
    """Rows of the chosen operators that run inside no operator but an allowed one. chosen, allowed: masks of events."""
    for track in window.tracks:
        operations = operations_on(window.trace, track)
        around = nearest_ancestor(operations.parent, operations.moving)
        free = (around == ROOT) | allowed[operations.rows[around]]
        yield from operations.rows[chosen[operations.rows] & free].tolist()


def _paired(calls: Iterable[_Alike], expanded: Counter[Shape]) -> dict[Shape, list[_Alike]]:
    """Calls that make tensors of all pairs, by the shape of these: of inputs that are broadcast against each other, or
    that were expanded before."""
    found: defaultdict[Shape, list[_Alike]] = defaultdict(list)
    for call in calls:
        if plain_name(call.name) not in PAIRING or call.phase == Phase.BACKWARD.title or len(call.shapes) < 2:
            continue
        first, second = call.shapes[:2]
        shape = broadcast(first, second)
        spread = elements(shape) >= TIMES * max(elements(first), elements(second))
        both = first == second and expanded[shape] >= 2
        if (spread or both) and elements(shape) >= SMALLEST:
            found[shape].append(call)
    return found


def broadcast(first: Shape, second: Shape) -> Shape:
    """Shape of what an operator makes of two tensors element by element; () where torch would refuse them."""
    longest = max(len(first), len(second))
    one, other = ((1,) * (longest - len(each)) + each for each in (first, second))
    fits = all(a == b or 1 in (a, b) for a, b in zip(one, other, strict=True))
    return tuple(map(max, one, other)) if fits else ()


def _sources(stacks: Iterable[StepContext], paired: Mapping[Shape, object]) -> dict[Shape, SourceLine]:
    """User's functions that make the tensors of these shapes, by windows with stacks."""
    found: dict[Shape, SourceLine] = {}
    for window in stacks:
        trace, events = window.trace, window.trace.events
        named = matching(trace, lambda symbol: plain_name(symbol) in PAIRING) & operator_events(trace)
        rows = np.flatnonzero(named)
        for row in rows[window.links.forward[rows] == UNKNOWN].tolist():
            shapes = _shapes(trace, row)
            shape = broadcast(*shapes[:2]) if len(shapes) > 1 else ()
            if shape in paired and shape not in found:
                at = np.array([row])
                source = source_of(trace, window.links, at, events.duration[at])
                found.update({shape: source} if source is not None else {})
    return found


def _shapes(trace: Trace, row: int) -> tuple[Shape, ...]:
    at = int(trace.events.shapes[row])
    return shapes_of(trace.shapes[at]) if at != ABSENT else ()
