"""Operators on tensors of all pairs: two smaller tensors broadcast against each other, and summed up (`SpreadUse`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from steptime.advice.kernels import elements, plain_name, shapes_at, shapes_of
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
WHOLE = frozenset({"pairwise_distance", "cosine_similarity"})
"""Pairs, norms and sums in one operator."""
MEASURING = frozenset({"pow", "square", "abs", "norm", "linalg_vector_norm", "pairwise_distance"})
"""What makes a distance of differences."""
SUMMING = frozenset({"sum", "mean", "norm", "linalg_vector_norm"}) | WHOLE
SCALING = frozenset({"mul", "div", "add"})
"""What may be done before the pairs are made, with a number or with one of each feature."""
TIMES, SMALLEST = 8, 1 << 14
"""Times as many numbers as in either input, and numbers, from which on a tensor is one of all pairs."""

Shape = tuple[int, ...]
Sides = frozenset[int]
"""Dimensions, counted from the last one, which is -1."""


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
    """Tensors of all pairs that profiled CPU steps make and sum, the longest first. Arguments as in `shaped_uses`."""
    if steps.on_device:
        return ()
    calls, shares = _calls(steps), steady_shares(profiled, steady)
    paired, sums_of = _paired(calls, _expanded(steps)), _summed(steps)
    sources, uses = _sources(stacks, paired), []
    for shape, (pairing, features) in paired.items():
        own = [call for call in calls if call in pairing or shape in call.shapes]
        forward = [call for call in own if call.phase != Phase.BACKWARD.title]
        names = {plain_name(call.name) for call in forward}
        subtracts = any(plain_name(call.name) in SUBTRACTING for call in pairing)
        others = [call for call in forward if call not in pairing]
        sums = any(summed <= features for summed in sums_of[shape])
        sums = sums and all(_is_spared(call, shape, features, subtracts=subtracts) for call in others)
        if (sums or names & WHOLE) and (not subtracts or names & MEASURING):
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


def _is_spared(call: _Alike, shape: Shape, features: Sides, *, subtracts: bool) -> bool:
    """True for a call on pairs that a matmul or a distance makes unnecessary: it measures them, sums them up, or scales
    them by something that is not itself of all pairs. Others need the pairs, as a product of differences and weights
    does."""
    name, others = plain_name(call.name), list(call.shapes[:2])
    if name in SUMMING or (subtracts and name in MEASURING):
        return True
    others.remove(shape)
    paired = {-at for at in range(1, len(shape) + 1)} - features
    return name in SCALING and not any(_sizes_at(paired, each) == _sizes_at(paired, shape) for each in others)


def _sizes_at(sides: Iterable[int], shape: Shape) -> list[int]:
    return [shape[side] if -side <= len(shape) else 1 for side in sides]


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


def _rows(window: StepContext, names: Collection[str]) -> list[int]:
    """Rows of operators in the window's steps, outside of backward."""
    trace, links = window.trace, window.links
    named = matching(trace, lambda symbol: plain_name(symbol) in names) & operator_events(trace)
    rows = np.flatnonzero(named & (links.step != UNKNOWN))
    return [int(row) for row in rows[links.forward[rows] == UNKNOWN]]


def _expanded(window: StepContext) -> dict[Shape, list[Sides]]:
    """Shapes that smaller tensors are expanded to, each with the dimensions in which one is. What an operator expands
    for itself (the mask of attention, for one matmul with it) meets no other tensor."""
    trace, links = window.trace, window.links
    expands = matching(trace, lambda symbol: plain_name(symbol) == "expand") & (links.step != UNKNOWN)
    pairing = matching(trace, lambda symbol: plain_name(symbol) in PAIRING)
    found: defaultdict[Shape, list[Sides]] = defaultdict(list)
    rows = np.fromiter(_not_inside(window, expands, pairing), np.int64)
    for row in rows[links.forward[rows] == UNKNOWN].tolist():
        given, sizes = shapes_at(trace, row), _listed_numbers(trace, row)
        if given and sizes:
            kept = (1,) * (len(sizes) - len(given[0])) + given[0]
            shape = tuple(old if new < 0 else new for new, old in zip(sizes, kept, strict=False))
            if elements(shape) >= TIMES * elements(given[0]):
                apart = enumerate(zip(shape, kept, strict=False), -len(shape))
                found[shape].append(frozenset(side for side, (new, old) in apart if new != old))
    return found


def _not_inside(window: StepContext, chosen: Bool, allowed: Bool) -> Iterator[int]:
    """Rows of the chosen operators that run inside no operator but an allowed one. chosen, allowed: masks of events."""
    for track in window.tracks:
        operations = operations_on(window.trace, track)
        around = nearest_ancestor(operations.parent, operations.moving)
        free = (around == ROOT) | allowed[operations.rows[around]]
        yield from operations.rows[chosen[operations.rows] & free].tolist()


def _summed(window: StepContext) -> defaultdict[Shape, list[Sides]]:
    """Shapes of which sums are taken, each with the dimensions of one that names them."""
    found: defaultdict[Shape, list[Sides]] = defaultdict(list)
    for row in _rows(window, SUMMING - WHOLE):
        given, sides = shapes_at(window.trace, row), _listed_numbers(window.trace, row)
        if given and sides:
            found[given[0]].append(frozenset(side if side < 0 else side - len(given[0]) for side in sides))
    return found


def _listed_numbers(trace: Trace, row: int) -> tuple[int, ...]:
    """The first list of numbers among a call's arguments; () without one."""
    listed = (each for each in listed_inputs(trace, row) if each.startswith("["))
    return tuple(map(int, NUMBER.findall(next(listed, ""))))


NUMBER = re.compile(r"-?\b\d{1,12}\b")


def _paired(calls: Iterable[_Alike], expanded: Mapping[Shape, list[Sides]]) -> dict[Shape, tuple[list[_Alike], Sides]]:
    """Calls that make tensors of all pairs, by the shape of these: of inputs that are broadcast against each other, or
    that were expanded before. With the dimensions that both inputs have, which a sum over features goes over."""
    found: dict[Shape, tuple[list[_Alike], Sides]] = {}
    for call in calls:
        if plain_name(call.name) not in PAIRING or call.phase == Phase.BACKWARD.title or len(call.shapes) < 2:
            continue
        first, second = call.shapes[:2]
        shape = broadcast(first, second)
        spread = elements(shape) >= TIMES * max(elements(first), elements(second))
        apart = expanded.get(shape, ()) if first == second else ()
        if (spread or len(apart) >= 2) and elements(shape) >= SMALLEST:
            sides = range(-len(shape), 0)
            both = {side for side in sides if _sizes_at([side], first) == _sizes_at([side], second)}
            made, features = found.get(shape, ([], frozenset(both)))
            found[shape] = [*made, call], features & both.difference(*apart)
    return found


def broadcast(first: Shape, second: Shape) -> Shape:
    """Shape of the result of an element-wise operator on two tensors; () if torch would refuse their shapes."""
    longest = max(len(first), len(second))
    one, other = ((1,) * (longest - len(each)) + each for each in (first, second))
    fits = all(a == b or 1 in (a, b) for a, b in zip(one, other, strict=True))
    return tuple(map(max, one, other)) if fits else ()


def _sources(stacks: Iterable[StepContext], paired: Mapping[Shape, object]) -> dict[Shape, SourceLine]:
    """User's functions that make the tensors of these shapes, by windows with stacks."""
    found: dict[Shape, SourceLine] = {}
    for window in stacks:
        for row in _rows(window, PAIRING):
            shapes, at = shapes_at(window.trace, row), np.array([row])
            shape = broadcast(*shapes[:2]) if len(shapes) > 1 else ()
            if shape in paired and shape not in found:
                source = source_of(window.trace, window.links, at, window.trace.events.duration[at])
                found.update({shape: source} if source is not None else {})
    return found
