"""Backward time of the parts of a graph whose gradients nobody uses.

The probe has recorded, in a few steps without a profiler, which nodes of each backward pass lead only to dropped
gradients, by their sequence numbers from the newest of the pass. A profiled pass with the same numbers has made the
same graph, so these are its nodes, too. Passes that look the same may have had different fates: each counts by how
often it was seen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.modules import module_calls, within
from steptime.analysis.operators import operations_on, operator_calls, takes_values, unreached
from steptime.analysis.recompute import NumberedFrames, numbered_frames, on_device
from steptime.analysis.step_context import StepContext
from steptime.analysis.timeline import Phase
from steptime.arrays import Bool, Int64, unique
from steptime.intervals import EMPTY, Intervals, contains, join, total as length, union
from steptime.quantities import SourceLine
from steptime.recording.recording import PassFacts, PickedFacts, UnreadFacts
from steptime.trace.links import UNKNOWN

ATTENTION = "MultiheadAttention"
PASSES = frozenset(
    [
        "_softmax",
        "_softmax_backward_data",
        "mean",
        "div",
        "mul",
        "masked_fill",
        "native_dropout",
        "native_dropout_backward",
        "bernoulli_",
    ]
)
PRODUCTS = frozenset({"bmm", "baddbmm", "matmul"})
"""Operators of attention whose weights are wanted: those that fused attention has none of, and those that it has inside
of its kernel."""
UNREAD = frozenset({"zero_", "_foreach_zero_", "detach", "detach_"})
"""Operators that read nothing of a gradient."""
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class UnusedPass:
    """Backward passes that compute gradients which nobody uses. facts: facts on these passes. nothing: fraction of the
    profiled steps' backward time in nodes that lead to unused gradients only; partly: fraction in nodes that also lead
    to others."""

    facts: PassFacts
    nothing: float
    partly: float


@dataclass(frozen=True, slots=True)
class PickedUse:
    """Rows that are computed and not used. facts: facts on the nodes that compute them. spent: fraction of the profiled
    steps' time in these nodes, forward and backward."""

    facts: PickedFacts
    spent: float


@dataclass(frozen=True, slots=True, eq=False)
class _Matched:
    """Profiled passes that have made the graph of known ones. places: positions among all backward passes; frames:
    their frames by track, with the newest number of each pass. often: fraction of such graphs that had the known
    passes' fate."""

    places: list[int]
    frames: list[tuple[int, int, NumberedFrames]]
    often: float

    def chosen(self, nodes: Runs) -> Iterator[tuple[int, NumberedFrames]]:
        """(track, rows of autograd's frames) of these nodes."""
        for track, newest, frames in self.frames:
            yield track, frames.only(_within(newest - frames.number, nodes))


def _matched(steps: StepContext, known: Sequence[PassFacts]) -> list[tuple[PassFacts, _Matched]]:
    backward = steps.phases.get(Phase.BACKWARD, EMPTY)
    if not any(each.nothing or each.partly or each.picked for each in known) or not len(backward):
        return []
    alike = defaultdict[Runs, list[PassFacts]](list)
    for each in known:
        alike[each.visited].append(each)
    frames = {track: numbered_frames(steps, track) for track in steps.tracks}
    found = defaultdict[Runs, _Matched](lambda: _Matched([], [], 1.0))
    for at, newest, inside in _passes(frames, backward):
        numbers = _runs(unique(np.concatenate([newest - each.number for each in inside.values()])))
        if numbers in alike:
            found[numbers].places.append(at)
            found[numbers].frames.extend((track, newest, each) for track, each in inside.items())
    return [
        (each, replace(found[each.visited], often=each.count / sum(other.count for other in alike[each.visited])))
        for each in known
        if each.visited in found
    ]


def unused_passes(steps: StepContext, known: Sequence[PassFacts]) -> tuple[UnusedPass, ...]:
    """Known passes whose time the profiled steps show. A pass is excluded if an operator after it takes tensors of the
    dropped gradients' shapes, since these may be read. Passes of one call of torch.autograd.grad count as one, because
    its graph may differ from pass to pass."""
    whole = sum(_time(steps, track, numbered_frames(steps, track)) for track in steps.tracks)
    uses = []
    for facts, matched in _matched(steps, known):
        if whole and (facts.nothing or facts.partly) and not _is_read(steps, matched.places, facts.shapes):
            nothing, partly = (
                matched.often * sum(_time(steps, *each) for each in matched.chosen(nodes)) / whole
                for nodes in (facts.nothing, facts.partly)
            )
            uses.append(UnusedPass(facts, nothing, partly))
    asked = {(each.facts.site, each.facts.read): each for each in uses if each.facts.asked}
    for key, use in asked.items():
        alike = [each for each in uses if each.facts.asked and (each.facts.site, each.facts.read) == key]
        asked[key] = replace(
            use, nothing=sum(each.nothing for each in alike), partly=sum(each.partly for each in alike)
        )
    return (*(each for each in uses if not each.facts.asked), *asked.values())


def picked_uses(steps: StepContext, known: Sequence[PassFacts]) -> tuple[PickedUse, ...]:
    """Rows that are computed and not used, with their time, together by the module that computes them."""
    wall = float((steps.windows[:, 1] - steps.windows[:, 0]).sum())
    found: dict[tuple[str, SourceLine | None], PickedUse] = {}
    for facts, matched in _matched(steps, known):
        for picked in facts.picked:
            key = picked.path, picked.made
            before = found.get(key, PickedUse(picked, 0.0))
            spent = matched.often * sum(_both_ways(steps, *each) for each in matched.chosen(picked.nodes)) / wall
            found[key] = replace(before, spent=before.spent + spent)
    return tuple(found.values())


def _both_ways(steps: StepContext, track: int, frames: NumberedFrames) -> int:
    """Time in frames and in the forward operators that they differentiate, ns."""
    rows = steps.links.forward[frames.row]
    rows = rows[rows != UNKNOWN]
    forward = union(steps.trace.events.start[rows], steps.trace.events.ends(rows))
    held = join(union(frames.start, frames.end), forward)
    return length(on_device(steps.trace, held, track) if steps.on_device else held)


@dataclass(frozen=True, slots=True)
class UnreadUse:
    """A result of a module that nobody reads. facts: facts on this result. spent: fraction of the profiled steps' time
    in operators that only compute it; around: fraction in operators that would be faster without it."""

    facts: UnreadFacts
    spent: float
    around: float


def unread_uses(steps: StepContext, known: Sequence[UnreadFacts]) -> tuple[UnreadUse, ...]:
    """Results of modules that nobody reads, with the time of their operators, together by line. For attention weights,
    these are the passes over the weights, since attention without them is fused; else the operators that backward does
    not go through."""
    wall = float((steps.windows[:, 1] - steps.windows[:, 0]).sum())
    if not known or not wall:
        return ()
    calls, made = module_calls(steps), operator_calls(steps)
    owner = calls.of(steps.links.module[made.rows].astype(np.int64))
    names = [steps.trace.symbols[each].rpartition("::")[2] for each in steps.trace.events.name[made.rows].tolist()]
    alone = unreached(steps)[made.rows] & (made.phase == Phase.FORWARD)
    alone &= not takes_values(steps)
    found = []
    for facts in {each.site: each for each in known}.values():
        paths = [each.path for each in known if each.site == facts.site]
        inside = np.array([any(path in within(own) for path in paths) for own in calls.paths] + [False])[owner]
        only = inside & (np.array([each in PASSES for each in names], np.bool_) if facts.type == ATTENTION else alone)
        around = inside & np.array([facts.type == ATTENTION and each in PRODUCTS for each in names], np.bool_)
        facts = replace(facts, calls=sum(each.calls for each in known if each.site == facts.site))
        found.append(
            UnreadUse(facts, float(made.duration[only].sum()) / wall, float(made.duration[around].sum()) / wall)
        )
    return tuple(found)


def _passes(
    frames: dict[int, NumberedFrames], backward: Intervals
) -> Iterator[tuple[int, int, dict[int, NumberedFrames]]]:
    """Yields (place of the pass, its newest number, its frames by track)."""
    at = {track: np.searchsorted(backward.start, found.start, side="right") - 1 for track, found in frames.items()}
    at = {track: np.where(contains(backward, frames[track].start), places, -1) for track, places in at.items()}
    for place in unique(np.concatenate([np.zeros(0, np.int64), *at.values()])).tolist():
        inside = {track: found.only(at[track] == place) for track, found in frames.items()}
        if place >= 0:
            yield place, max(int(found.number.max()) for found in inside.values() if len(found.number)), inside


def _time(steps: StepContext, track: int, frames: NumberedFrames) -> int:
    """Time in frames, ns; on an accelerator, of the kernels that they launched."""
    held = union(frames.start, frames.end)
    return length(on_device(steps.trace, held, track) if steps.on_device else held)


def _runs(numbers: Int64) -> Runs:
    """Sorted numbers as (first, last) of each run without a gap."""
    cuts = np.flatnonzero(np.diff(numbers) > 1) + 1
    return tuple((int(part[0]), int(part[-1])) for part in np.split(numbers, cuts) if len(part))


def _within(numbers: Int64, runs: Runs) -> Bool:
    found = np.zeros(len(numbers), np.bool_)
    for first, last in runs:
        found |= (numbers >= first) & (numbers <= last)
    return found


def _is_read(steps: StepContext, passes: list[int], shapes: Iterable[tuple[int, ...]]) -> bool:
    """True if an operator between one of these passes and the next takes a tensor of one of these shapes, outside of
    the model and the update."""
    if steps.track is None:
        return False
    backward = steps.phases[Phase.BACKWARD]
    ends = [*backward.start.tolist()[1:], int(steps.boundaries[-1, 1])]
    between = join(*(union([int(backward.end[at])], [max(int(backward.end[at]), ends[at])]) for at in passes))
    busy = join(
        *(steps.phases.get(phase, EMPTY) for phase in (Phase.INPUT, Phase.FORWARD, Phase.OPTIMIZER, Phase.EVALUATION))
    )
    events, rows = steps.trace.events, operations_on(steps.trace, steps.track).rows
    start = events.start[rows]
    rows = rows[contains(between, start) & ~contains(busy, start)]
    wanted = {json.dumps(list(shape)).replace(" ", "") for shape in shapes}
    for name, taken in {*zip(events.name[rows].tolist(), events.shapes[rows].tolist(), strict=True)}:
        known = taken >= 0 and steps.trace.symbols[name].rpartition("::")[2] not in UNREAD
        text = steps.trace.shapes[taken].replace(" ", "") if known else ""
        if any(shape in text for shape in wanted):
            return True
    return False
