"""Time between the training steps for the rules: its length, how much of it the models run, and its lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from steptime.advice.run_uses import SegmentLine, SegmentUse, SmallBatches
from steptime.advice.savings import ratio
from steptime.analysis.layout import Layout
from steptime.analysis.lines import sources_of
from steptime.analysis.step_patterns import rising
from steptime.analysis.timeline import Segment, SegmentKind, merge
from steptime.intervals import Intervals, contains, measure, union
from steptime.journal import Flag, Kind
from steptime.quantities import SourceLine, format_share, format_source
from steptime.recording.recording import Process, SampledPath
from steptime.trace.call_tree import ROOT, call_tree, exclusive_spans

ONE_LINE = 0.8
"""Fraction of the time above which a line is replaced by the lines that it calls."""
MOST_LINES = 5
LEAST_SHARE = 0.02
"""Least fraction of a line that is listed."""

DEEPEST = 32
"""Most levels of calls below the loop; deeper recursion counts with the last one."""

MOST_REPORTED = 3
MOST_SLOWED = 3.0
"""Largest slowdown by line timing: beyond it, the times of lines with many torch calls are too long to report."""
MOST = 0.5
"""Fraction of the sampled time that makes a line the one to look at, however much it was slowed."""
TRANSFER = "in transfers "
PARTS = (
    ("in the environment ", re.compile(r"(?<!optimizer)(?<!optim)(?<!opt)\.(?:step|reset)\(")),
    (TRANSFER, re.compile(r"\.(?:item|cpu|numpy|tolist|to|cuda)\(|\b(?:as_)?tensor\(|\bfrom_numpy\(")),
)
"""Kinds of a rollout's lines, by their text: environments have the methods of Gymnasium (and of Gym before it)."""
SMALL, LEAST_SAVED = 4, 0.3
"""Times fewer rows than a training batch has, from which on an evaluation's batches are small; fraction of its time
that larger ones must save: a pass that is as long as its rows ask for gains nothing."""
WITHOUT_GRADIENTS = {SegmentKind.EVALUATION, SegmentKind.ROLLOUT}
"""Segments with calls without gradients: where a run has both, nobody knows whose rows were counted."""
CALLS_ALONE = 0.95
"""Fraction of a rollout in the models' forward above which no environment acts between the calls."""


def segment_uses(process: Process, layout: Layout) -> tuple[SegmentUse, ...]:
    """Segments outside of training steps, longest kind first. Fractions are of the run after warm-up without steptime's
    own pauses (`Cost`), as in an unobserved job."""
    steps, segments = layout.timeline.steps, layout.timeline.segments
    if not len(steps.start):
        return ()
    start = int(steps.end[steps.warm_up][-1]) if steps.warm_up.any() else int(steps.start[0])
    end = max([int(steps.end[-1]), *(segment.end for segment in segments)])
    kinds: dict[SegmentKind, list[Segment]] = defaultdict(list)
    for segment in segments:
        if segment.end > start and segment.kind is not SegmentKind.PAUSE:
            kinds[segment.kind].append(segment)
    paused = measure(layout.claims.sets[SegmentKind.PAUSE], np.array([start]), np.array([end]))
    uses = [_use(kind, held, end - start - int(paused[0]), process, layout) for kind, held in kinds.items()]
    return tuple(sorted(uses, key=lambda use: -use.duration))


def _use(kind: SegmentKind, held: list[Segment], run: int, process: Process, layout: Layout) -> SegmentUse:
    """Summary of the segments of a kind. run: ns that the fraction refers to."""
    ends, every = layout.timeline.steps.end, [each.start for each in layout.timeline.segments if each.kind is kind]
    first = np.array([each.start for each in held], np.int64)
    last = np.array([each.end for each in held], np.int64)
    length = int((last - first).sum())
    forwards = layout.records.of(Kind.FORWARD).intervals
    between = np.unique(np.searchsorted(ends, first))  # a pause of ours cuts one in two
    apart = np.diff(np.unique(np.searchsorted(ends, np.array(every, np.int64))))
    lines, slowed, asked = _lines(process, layout, union(first, last))
    small = None
    if {each.kind for each in layout.timeline.segments} & WITHOUT_GRADIENTS == {kind}:
        small = _small_batches(process, layout, union(first, last), len(between))
    return SegmentUse(
        kind.name.lower(),
        len(between),
        length,
        ratio(length, run),
        ratio(int(measure(forwards, first, last).sum()), length),
        lines,
        float(np.median(apart)) if len(apart) else 0.0,
        ratio(slowed * len(between), length) if slowed else 1.0,
        asked,
        small,
        rising(last - first),
        _graphs(layout, union(first, last)) if kind is SegmentKind.EVALUATION else 0.0,
    )


def _graphs(layout: Layout, held: Intervals) -> float:
    """Fraction of the forward of trained models in these intervals that runs with gradients on; 0 where a backward
    follows on such a call, as forces need it."""
    calls, backwards = (layout.records.of(kind).outermost() for kind in (Kind.FORWARD, Kind.BACKWARD))
    inside = contains(held, calls.start)
    trained = np.unique(calls.identity[calls.flagged(Flag.GRADIENT) & ~inside])
    own = inside & np.isin(calls.identity, trained)
    graphs, both = own & calls.flagged(Flag.GRADIENT), merge(calls, backwards)
    after = np.searchsorted(both.start, calls.start[graphs], side="right")
    if (both.kind[after[after < len(both)]] == int(Kind.BACKWARD)).any():
        return 0.0
    spent = calls.end - calls.start
    return ratio(int(spent[graphs].sum()), int(spent[own].sum()))


def _small_batches(process: Process, layout: Layout, held: Intervals, count: int) -> SmallBatches | None:
    """Batches of `count` evaluations or rollouts in these intervals; None where they are not small, or larger ones save
    little."""
    trained, seen = process.inputs, process.evaluated
    if trained is None or seen is None or trained.changed or seen.rows * SMALL > trained.rows:
        return None
    calls = layout.records.of(Kind.FORWARD).outermost()
    calls = calls.where(calls.identity == seen.identity)
    gradient, inside = calls.flagged(Flag.GRADIENT), contains(held, calls.start)
    usual, small = (
        each.end - each.start for each in (calls.where(gradient & ~inside), calls.where(~gradient & inside))
    )
    if not len(usual) or not len(small):
        return None
    forward = int(small.sum())
    batched = min(1.0, seen.rows / trained.rows * max(1.0, seen.larger)) * len(small) * float(np.median(usual))
    if forward - batched < LEAST_SAVED * int((held.end - held.start).sum()):
        return None
    asked = layout.records.of(Kind.LOADER_NEXT)
    fed = set(asked.where(contains(held, asked.start)).identity.tolist()) - {*layout.timeline.training_loaders}
    loaders = (each.site for each in process.loaders if each.identity in fed and each.batch_size == seen.rows)
    made = next(loaders, None)
    return SmallBatches(seen.rows, trained.rows, len(small) / count, forward / count, batched / count, made)


def _lines(process: Process, layout: Layout, held: Intervals) -> tuple[tuple[SegmentLine, ...], int, SourceLine | None]:
    """(lines of these intervals, ns of the interval in which all functions were timed, line of the training loop that
    most of the time is below). The ns are 0 if the lines come from the loop, whose timing costs little.

    The window in which all functions are timed lasts to the end of the following step. Lines of the loop, timed before,
    separate that step's work; without those, the window must hold little of a step."""
    seen, timed = loop_paths(process, layout, held), process.between
    if timed is None:
        return segment_lines(seen), 0, _in_loop(process, seen)
    inside = int(measure(held, np.array([timed.start]), np.array([timed.end]))[0])
    places = {(path.lines[-1].file, path.lines[-1].line) for path in seen if path.lines}
    paths = [path for path in timed.paths if any(line.place in places for line in path.lines)]
    if not places and 2 * inside > timed.end - timed.start:
        paths = list(timed.paths)
    if not inside or not paths:
        return segment_lines(seen), 0, _in_loop(process, seen)
    return segment_lines(paths), inside, _in_loop(process, paths)


def _in_loop(process: Process, paths: Iterable[SampledPath]) -> SourceLine | None:
    """The line of the training loop below which most of the time is."""
    loops = {(code.file, code.function) for code in process.codes if code.loop}
    spent: Counter[SourceLine] = Counter()
    for path in paths:
        inside = (line for line in path.lines if (line.file, line.function) in loops)
        spent.update(dict.fromkeys(islice(inside, 1), path.duration))
    return next((line for line, amount in spent.most_common(1) if amount >= MOST * spent.total()), None)


def loop_paths(process: Process, layout: Layout, held: Intervals) -> list[SampledPath]:
    """Sampled paths of calls in some intervals, from line-timed steps. If a step is about as long as the work before
    it, the window between two steps contains too much of the step."""
    records = layout.records.of(Kind.LINE)
    tree = call_tree(records.start, records.end)
    spans = exclusive_spans(tree)
    inside = measure(held, spans.start, spans.end)
    sources = sources_of(process)
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


def _acts(line: SourceLine) -> bool:
    """True for a line of a model's forward, and for one that by its text belongs to an environment."""
    return line.function.rpartition(".")[2] == "forward" or PARTS[0][1].search(line.text) is not None


def segment_lines(paths: Sequence[SampledPath]) -> tuple[SegmentLine, ...]:
    """Lines of the innermost function over which the time of the paths is spread: a line with nearly all of it is
    replaced by the lines that it leads to. A model's forward is not entered, because only its call can be left out."""
    chosen = [(path.duration, _outside_of_forward(path.lines[::-1])) for path in paths if path.lines]
    whole = sum(duration for duration, _ in chosen)
    depth, chosen = _followed(chosen, ONE_LINE)
    largest = _spent(chosen, depth).most_common(MOST_LINES)
    acting = {line for path in paths if any(map(_acts, path.lines)) for line in path.lines}
    timed = {path[depth] for _, path in chosen if len(path) > depth + 1}
    return tuple(
        SegmentLine(line, share, _within(chosen, depth, line), line in acting or line not in timed)
        for line, amount in largest
        if (share := ratio(amount, whole)) >= LEAST_SHARE
    )


Taken = list[tuple[int, tuple[SourceLine, ...]]]
"""(ns, path of calls, outermost line first)."""


def _spent(paths: Taken, depth: int) -> Counter[SourceLine]:
    """Time of each line at this depth of calls, ns."""
    spent: Counter[SourceLine] = Counter()
    for duration, lines in paths:
        if depth < len(lines):
            spent[lines[depth]] += duration
    return spent


def _followed(paths: Taken, least: float) -> tuple[int, Taken]:
    """Descends into the line with at least this fraction of the time, as long as there is one. Returns the depth of
    calls where the time spreads or ends, and the paths that lead there."""
    depth, whole = 0, sum(duration for duration, _ in paths)
    while True:
        first = [line for line, amount in _spent(paths, depth).most_common(1) if amount >= least * whole]
        inside = [(duration, lines) for duration, lines in paths if [*lines[depth : depth + 1]] == first]
        if not first or all(len(lines) == depth + 1 for _, lines in inside):
            return depth, paths
        paths, depth = inside, depth + 1


def _within(paths: Taken, depth: int, line: SourceLine) -> SourceLine | None:
    """Line to which most of the time of a line at this depth goes, if that is one line of a function that it calls;
    else None."""
    below = [(duration, lines[depth + 1 :]) for duration, lines in paths if lines[depth : depth + 1] == (line,)]
    whole = sum(duration for duration, _ in below)
    innermost, below = _followed(below, MOST)
    largest = _spent(below, innermost).most_common(1)
    return next((each for each, amount in largest if amount >= MOST * whole), None)


def _outside_of_forward(lines: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
    """Path, outermost line first, up to the first line of a model's forward; all of it if it starts in one."""
    inside = (number for number, line in enumerate(lines) if number and line.function.rpartition(".")[2] == "forward")
    return lines[: next(inside, None)]


def only_calls(use: SegmentUse) -> bool:
    """True if a rollout consists of model calls alone: no environment takes time, and no line's text looks like one."""
    return use.kind == "rollout" and use.forward >= CALLS_ALONE and not any(map(is_environment, use.lines))


def in_environment(use: SegmentUse) -> float:
    """Fraction of a segment's time in lines that, by their text, belong to an environment."""
    return sum(line.share for line in use.lines if is_environment(line))


def own_work(use: SegmentUse) -> tuple[SegmentLine, ...]:
    """Lines of one function that take most of a rollout's time although nothing acts in them (the making of a batch, a
    log), the longest first; () without any, or if they and the models' forward together exceed the whole."""
    function = use.lines[0].source.function if use.lines else ""
    lines = tuple(line for line in use.lines if line.source.function == function and not line.acts)
    share = sum(line.share for line in lines)
    return lines if share >= MOST and share + use.forward <= 1 and not use.lines[0].acts else ()


def is_environment(line: SegmentLine) -> bool:
    """True for a line that, by its text, belongs to an environment."""
    return PARTS[0][1].search(line.source.text) is not None


def lines_text(use: SegmentUse, device: str) -> str:
    """Text on a rollout's lines: "71 % of that in the environment at ppo.py:21, 13 % at ppo.py:22; the models' forward
    takes 16 %"; "" if nothing is known. device: the job's; on a CPU there are no transfers."""
    if use.slowed > MOST_SLOWED:
        places = [f"most of that at {line_place(line)}" for line in use.lines[:1] if line.share >= MOST]
        return "; ".join((*places, *_forward(use)))
    message = [
        f"{format_share(line.share)}{'' if number else ' of that'} {_part(line, device)}at {line_place(line)}"
        for number, line in enumerate(use.lines[:MOST_REPORTED])
    ]
    return "; ".join(filter(None, (", ".join(message), *_forward(use))))


def line_place(line: SegmentLine) -> str:
    """Place of a line as text, with the line that it leads to: "ppo.py:21", "ppo.py:21 (most at env.py:9)"."""
    return format_source(line.source) + (f" (most at {format_source(line.within)})" if line.within else "")


def _forward(use: SegmentUse) -> tuple[str, ...]:
    known = use.forward >= LEAST_SHARE and not only_calls(use)
    return (f"the models' forward takes {format_share(use.forward)}",) if known else ()


def _part(line: SegmentLine, device: str) -> str:
    part = next((part for part, text in PARTS if text.search(line.source.text)), "")
    return "" if device == "cpu" and part == TRANSFER else part
