"""Time between the training steps, as rules see it: how long, how much of it the models run, and which lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from steptime.advice.run_uses import SegmentLine, SegmentUse
from steptime.advice.savings import ratio
from steptime.analysis.layout import Layout
from steptime.analysis.lines import identity_of
from steptime.analysis.timeline import Segment, SegmentKind
from steptime.intervals import Intervals, measure, union
from steptime.journal import Kind
from steptime.quantities import SourceLine, format_share, format_source
from steptime.recording.recording import Process, SampledPath
from steptime.trace.call_tree import ROOT, call_tree, exclusive_spans

ONE_LINE = 0.8
"""A line with this share of all leads to what the time goes to: the lines that it calls are looked at instead."""
MOST_LINES = 5
LEAST_SHARE = 0.02
"""A line below it is worth no place."""

DEEPEST = 32
"""Calls below the loop whose lines are told apart; what a recursion calls deeper counts with them."""

MOST_REPORTED = 3
MOST_SLOWED = 3.0
"""Times as long as usual while its lines were timed: beyond it what calls much of torch is told too long."""
MOST = 0.5
"""Fraction of what was seen: the line that has it is the one to look at, however much slower that was."""
TRANSFER = "in transfers "
PARTS = (
    ("in the environment ", re.compile(r"(?<!optimizer)(?<!optim)(?<!opt)\.(?:step|reset)\(")),
    (TRANSFER, re.compile(r"\.(?:item|cpu|numpy|tolist|to|cuda)\(|\b(?:as_)?tensor\(|\bfrom_numpy\(")),
)
"""Kinds of a rollout's lines, by their text: environments have the methods of Gymnasium (and of Gym before it)."""
CALLS_ALONE = 0.95
"""Fraction of a rollout: where the models' forward takes so much of it, nothing acts between the calls."""


def segment_uses(process: Process, layout: Layout) -> tuple[SegmentUse, ...]:
    """Segments that are no training step, the longest kind first. The share is of the run from the end of the warm-up,
    without what steptime itself held it for, as `Cost` tells it: a job that nobody looks at spends that share."""
    steps, segments = layout.timeline.steps, layout.timeline.segments
    if not len(steps.start):
        return ()
    start = int(steps.end[steps.warm_up][-1]) if steps.warm_up.any() else int(steps.start[0])
    end = max([int(steps.end[-1]), *(segment.end for segment in segments)])
    kinds: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        if segment.end > start and segment.kind is not SegmentKind.PAUSE:
            kinds[segment.kind.name.lower()].append(segment)
    paused = measure(layout.claims.sets[SegmentKind.PAUSE], np.array([start]), np.array([end]))
    uses = [_use(kind, held, end - start - int(paused[0]), process, layout) for kind, held in kinds.items()]
    return tuple(sorted(uses, key=lambda use: -use.duration))


def _use(kind: str, held: list[Segment], run: int, process: Process, layout: Layout) -> SegmentUse:
    """run: ns that the share is of."""
    first = np.array([each.start for each in held], np.int64)
    last = np.array([each.end for each in held], np.int64)
    length = int((last - first).sum())
    forwards = layout.records.of(Kind.FORWARD).intervals
    between = np.unique(np.searchsorted(layout.timeline.steps.end, first))  # a pause of ours cuts one in two
    apart = np.diff(between)
    lines, slowed = _lines(process, layout, union(first, last))
    return SegmentUse(
        kind,
        len(between),
        length,
        ratio(length, run),
        ratio(int(measure(forwards, first, last).sum()), length),
        lines,
        float(np.median(apart)) if len(apart) else 0.0,
        ratio(slowed * len(between), length) if slowed else 1.0,
    )


def _lines(process: Process, layout: Layout, held: Intervals) -> tuple[tuple[SegmentLine, ...], int]:
    """Lines of these instants, and ns of the one interval of them in which all functions were timed; 0 where the lines
    are those of the loop, which timing hardly slows.

    The window in which all functions are timed reaches to the end of the step that follows. Work in that step is told
    apart by the lines of the loop, which were timed before; without those, the window must hold little of a step.
    """
    seen, timed = loop_paths(process, layout, held), process.between
    if timed is None:
        return segment_lines(seen), 0
    inside = int(measure(held, np.array([timed.start]), np.array([timed.end]))[0])
    places = {(path.lines[-1].file, path.lines[-1].line) for path in seen if path.lines}
    paths = [path for path in timed.paths if any((line.file, line.line) in places for line in path.lines)]
    if not places and 2 * inside > timed.end - timed.start:
        paths = list(timed.paths)
    return (segment_lines(paths), inside) if inside and paths else (segment_lines(seen), 0)


def loop_paths(process: Process, layout: Layout, held: Intervals) -> list[SampledPath]:
    """Paths that the line-timed steps show of these instants, by path of calls: where a step and what lies before it
    are about as long, the window between two steps holds too much of the step to tell."""
    records = layout.records.of(Kind.LINE)
    tree = call_tree(records.start, records.end)
    spans = exclusive_spans(tree)
    inside = measure(held, spans.start, spans.end)
    sources = {
        identity_of(code, line): SourceLine(code.file, line.line, code.function, line.text)
        for code in process.codes
        for line in code.lines
    }
    known: dict[tuple[int, int], int] = {}
    paths: list[tuple[SourceLine, ...]] = [()]
    number: list[int] = []
    for identity, parent in zip(records.identity[tree.rows].tolist(), tree.parent.tolist(), strict=True):
        path = number[parent] if parent != ROOT else 0
        if (source := sources.get(identity)) is not None and len(paths[path]) < DEEPEST:
            above, path = path, known.setdefault((path, identity), len(paths))
            if path == len(paths):
                paths.append((*paths[above], source))
        number.append(path)
    spent = np.bincount(np.array(number, np.int64)[spans.owner], inside, len(paths)).tolist()
    return [SampledPath(int(time), "", path[::-1]) for path, time in zip(paths, spent, strict=True) if path and time]


def segment_lines(paths: Iterable[SampledPath]) -> tuple[SegmentLine, ...]:
    """The lines of the innermost function in which the time is spread: where one line has nearly all of it, those that
    it calls. A model's forward is not looked into: what calls the model is what can be left out."""
    chosen = [(path.duration, _outside_of_forward(path.lines[::-1])) for path in paths if path.lines]
    whole = sum(duration for duration, _ in chosen)
    depth, chosen = _followed(chosen, ONE_LINE)
    largest = _spent(chosen, depth).most_common(MOST_LINES)
    return tuple(
        SegmentLine(line, share, _within(chosen, depth, line))
        for line, amount in largest
        if (share := ratio(amount, whole)) >= LEAST_SHARE
    )


Taken = list[tuple[int, tuple[SourceLine, ...]]]
"""ns, and the path of calls that they were spent in, the outermost line first."""


def _spent(paths: Taken, depth: int) -> Counter[SourceLine]:
    """ns by the line at this depth of calls."""
    spent: Counter[SourceLine] = Counter()
    for duration, lines in paths:
        if depth < len(lines):
            spent[lines[depth]] += duration
    return spent


def _followed(paths: Taken, least: float) -> tuple[int, Taken]:
    """Down into the line that has so much of the time, as long as there is one: the depth of calls where the time is
    spread, or ends, and the paths that lead there."""
    depth, whole = 0, sum(duration for duration, _ in paths)
    while True:
        first = [line for line, amount in _spent(paths, depth).most_common(1) if amount >= least * whole]
        inside = [(duration, lines) for duration, lines in paths if [*lines[depth : depth + 1]] == first]
        if not first or all(len(lines) == depth + 1 for _, lines in inside):
            return depth, paths
        paths, depth = inside, depth + 1


def _within(paths: Taken, depth: int, line: SourceLine) -> SourceLine | None:
    """Line to which most of the time of a line at this depth goes, if that is one line of a function that it calls."""
    below = [(duration, lines[depth + 1 :]) for duration, lines in paths if lines[depth : depth + 1] == (line,)]
    whole = sum(duration for duration, _ in below)
    innermost, below = _followed(below, MOST)
    largest = _spent(below, innermost).most_common(1)
    return next((each for each, amount in largest if amount >= MOST * whole), None)


def _outside_of_forward(lines: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
    """A path, the outermost line first, up to the first line of a model's forward; all where it starts in one."""
    inside = (number for number, line in enumerate(lines) if number and line.function.rpartition(".")[2] == "forward")
    return lines[: next(inside, None)]


def only_calls(use: SegmentUse) -> bool:
    """True if a rollout is calls of the models alone: no environment takes time, and no line is one by its text."""
    return use.kind == "rollout" and use.forward >= CALLS_ALONE and not any(map(_is_environment, use.lines))


def in_environment(use: SegmentUse) -> float:
    """Share of it in lines that are an environment's by their text."""
    return sum(line.share for line in use.lines if _is_environment(line))


def _is_environment(line: SegmentLine) -> bool:
    return PARTS[0][1].search(line.source.text) is not None


def lines_text(use: SegmentUse, device: str) -> str:
    """ "71 % of that in the environment at ppo.py:21, 13 % at ppo.py:22; the models' forward takes 16 %"; "" where
    nothing is known of it. device: that the job trains on: on a CPU nothing is transferred."""
    if use.slowed > MOST_SLOWED:
        places = [f"most of that at {line_place(line)}" for line in use.lines[:1] if line.share >= MOST]
        return "; ".join((*places, *_forward(use)))
    message = [
        f"{format_share(line.share)}{'' if number else ' of that'} {_part(line, device)}at {line_place(line)}"
        for number, line in enumerate(use.lines[:MOST_REPORTED])
    ]
    return "; ".join(filter(None, (", ".join(message), *_forward(use))))


def line_place(line: SegmentLine) -> str:
    """ "ppo.py:21", and the line that it leads to: "ppo.py:21 (most at env.py:9)"."""
    return format_source(line.source) + (f" (most at {format_source(line.within)})" if line.within else "")


def _forward(use: SegmentUse) -> tuple[str, ...]:
    known = use.forward >= LEAST_SHARE and not only_calls(use)
    return (f"the models' forward takes {format_share(use.forward)}",) if known else ()


def _part(line: SegmentLine, device: str) -> str:
    part = next((part for part, text in PARTS if text.search(line.source.text)), "")
    return "" if device == "cpu" and part == TRANSFER else part
