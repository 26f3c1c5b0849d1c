"""Configuration and measurements of the training loader."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from steptime.advice.evidence import record_of
from steptime.advice.outliers import MODEL
from steptime.advice.run_uses import InputUse, LoaderUse
from steptime.advice.savings import scaled
from steptime.analysis.layout import Layout
from steptime.analysis.timeline import RecordTable, Steps, counted, merge, records_of
from steptime.arrays import Int64
from steptime.intervals import Intervals, intersect, measure, union
from steptime.journal import BUSY_PARTS, Flag, Kind
from steptime.quantities import Estimate, SourceLine, mean_of_series
from steptime.recording.recording import ItemFacts, LoaderFacts, Process

SETTLING = 2
"""Steps after a start that are slower: once workers are forked, each page is copied when the training next writes to
it, mostly in its next step. As measured, steps of 10.8 ms took 19 to 21 and 12 to 14 after a start, and 10.8 again from
the fourth on."""


def _reported(known: set[int], every: RecordTable, steps: Steps, usual: Int64) -> Int64:
    """Usual steps that read only known iterators; all if no others are left. An iterator made before the probe was
    attached (`steptime attach`) may be of the same loader."""
    unknown = every.where(~np.isin(every.identity, list(known)))
    reported = usual[steps.start[usual] >= unknown.end.max(initial=0)]
    return reported if len(reported) else usual


def loader_use(process: Process, layout: Layout, usual: Int64) -> LoaderUse | None:
    """Training loader that the steps wait for most, with all its iterators; None without one, and if it was read before
    the steps. wait excludes an iterator's extra time for its first batch, and the shutdown of its workers when no
    batches are left. Both are part of `start`, the time from the last batch of an iterator to the first batch of the
    next one."""
    groups = _groups(process, layout)
    if not groups:
        return None
    steps, every = layout.timeline.steps, layout.records.of(Kind.LOADER_NEXT)
    tracks = {key: _of(every, (fact.identity for fact in facts)) for key, facts in groups.items()}
    key = max(groups, key=lambda key: int((tracks[key].end - tracks[key].start).sum()))
    facts, asked, iterators = groups[key][-1], tracks[key], {fact.identity for fact in groups[key]}
    given = asked.where(~asked.flagged(Flag.EXHAUSTED)).start
    batches = counted(given, steps.start, steps.end)
    known = iterators | {fact.identity for fact in process.loaders}
    demand = float(batches[_reported(known, every, steps, usual)].mean())
    if not demand:
        return None
    late, ended = _between_epochs(asked, facts)
    starts, per_start, start = _starts(layout, _by_iterator(asked, late), _by_iterator(asked, ended), iterators)
    # Segments that a loader's next holds are no wait (a pause of ours never is in one).
    wait = measure(union(asked.start, asked.end - np.maximum(late, ended)), steps.start, steps.end)
    own = _of(layout.records.of(Kind.FETCH, Kind.COLLATE), iterators)
    collections = layout.records.of(Kind.GARBAGE).intervals
    made = _made(_without(own, collections), _of(records_of(process.workers), iterators), steps, usual)
    collected = measure(intersect(own.intervals, collections), steps.start, steps.end)[usual]
    item, collate = _mean(made.of(Kind.FETCH)), _mean(made.of(Kind.COLLATE))
    return record_of(
        LoaderUse,
        facts,
        wait=mean_of_series(wait[usual]),
        item=scaled(item, 1 / max(1, facts.batch_size or 1)) if item else None,
        collate=collate,
        collector=float(collected.mean()) / demand,
        demand=demand,
        collate_name=facts.collate,
        start=start,
        starts=starts,
        steps_per_start=per_start,
        settling=_settling(layout, iterators, usual) if facts.workers else 0.0,
        busy=_busy(made),
        batches=_batches(facts, process.facts.world_size or 1),
        usable_cpus=process.settings.usable_cpus if process.settings else 1,
        length=facts.dataset_length,
        items=_items([each for each in process.items if each.iterator in iterators]),
        early=_early(process, steps, wait),
        made_anew=_are_made_anew(groups[key]),
        iterated_at=_iterated_at(process),
    )


def _early(process: Process, steps: Steps, wait: Int64) -> float | None:
    """Shortest wait (ns) of the steps before lines below the loop were timed, except the first one; None without
    any. Other load makes waits longer, not shorter."""
    start = process.sampled[0].start if process.sampled else 0
    before = wait[1 : np.searchsorted(steps.end, start)]
    return float(before.min()) if len(before) else None


ITERATES = "torch.utils.data.dataloader.DataLoader.__iter__"


def _iterated_at(process: Process) -> SourceLine | None:
    """The line that was seen to make an iterator while calls were looked at, if there is one such line."""
    places = {(fact.file, fact.line) for fact in process.called if ITERATES in fact.names}
    if len(places) != 1:
        return None
    file, line = places.pop()
    known = ((code.function, each.text) for code in process.codes if code.file == file for each in code.lines
             if each.line == line)  # fmt: skip
    return SourceLine(file, line, *next(known, ("", "")))


def input_use(process: Process, layout: Layout, usual: Int64) -> InputUse | None:
    """Inputs of the model in a usual step; None if their size is unknown or has changed, or a usual step does not call
    that model."""
    facts, steps = process.inputs, layout.timeline.steps
    if facts is None or facts.changed:
        return None
    called = _of(layout.records.of(Kind.FORWARD), [facts.identity])
    start = called.where(called.flagged(Flag.GRADIENT)).start
    calls = counted(start, steps.start, steps.end)[usual]
    if not len(calls) or not calls.all():
        return None
    each = float(calls.mean())
    tokens = None if facts.tokens is None else facts.tokens * each
    return InputUse(facts.module, facts.steps, facts.rows * each, tokens)


def _items(looked: Sequence[ItemFacts]) -> ItemFacts | None:
    """Combined facts of all examined items; the size is known if each has one."""
    if not looked:
        return None
    sizes = [each.bytes for each in looked if each.bytes is not None]
    return ItemFacts(
        looked[-1].iterator,
        sum(each.batches for each in looked),
        any(each.drawn for each in looked),
        max(sizes) if len(sizes) == len(looked) else None,
        min((each.available for each in looked if each.available is not None), default=None),
    )


def _groups(process: Process, layout: Layout) -> dict[int, list[LoaderFacts]]:
    """Facts of the training iterators by the loader that made them; an iterator without facts is its own loader."""
    known = {fact.identity: fact for fact in process.loaders}
    groups: dict[int, list[LoaderFacts]] = {}
    for iterator in layout.timeline.training_loaders:
        fact = known.get(iterator) or LoaderFacts(iterator, -1 - iterator, "")
        groups.setdefault(fact.loader, []).append(fact)
    return groups


def _are_made_anew(iterators: Sequence[LoaderFacts]) -> bool:
    """True if there are several iterators, each of a DataLoader of its own."""
    makers = {each.made_by for each in iterators}
    return None not in makers and len(makers) == len(iterators) > 1


def _of(records: RecordTable, iterators: Iterable[int]) -> RecordTable:
    return records.where(np.isin(records.identity, list(iterators)))


def _between_epochs(asked: RecordTable, facts: LoaderFacts) -> tuple[Int64, Int64]:
    """Extra cost of workers: by how much each iterator's first wait exceeds the median of the others, and the length of
    its last wait, which ends the workers, ns. 0 for all other waits."""
    late, ended = np.zeros(len(asked), np.int64), np.zeros(len(asked), np.int64)
    if not facts.workers:
        return late, ended
    _, first = np.unique(asked.identity, return_index=True)
    wait = asked.end - asked.start
    others = np.delete(wait, first)
    usual = int(np.median(others)) if len(others) else 0
    late[first] = np.maximum(0, wait[first] - usual)
    if not facts.iterable:  # one without a length also waits for its workers to find the end
        ended = np.where(asked.flagged(Flag.EXHAUSTED), wait, 0)
    return late, ended


def _by_iterator(asked: RecordTable, spent: Int64) -> dict[int, int]:
    """Largest value of each iterator."""
    found: dict[int, int] = {}
    for iterator, each in zip(asked.identity.tolist(), spent.tolist(), strict=True):
        found[iterator] = max(found.get(iterator, 0), each)
    return found


def _without(own: RecordTable, collections: Intervals) -> RecordTable:
    """Records without the time of garbage collections in them. A collection comes after a number of allocations, and
    rare ones scan every object, so that the record that it hits did not cause it."""
    collected = measure(collections, own.start, own.end)
    return RecordTable(own.kind, own.flags, own.identity, own.start, own.end - collected)


def _made(own: RecordTable, workers: RecordTable, steps: Steps, usual: Int64) -> RecordTable:
    """Batches made while the steady steps ran, in workers or in the training thread; all if there are too few.

    In the training thread only those of the usual steps count: a profiler or a timeline slows items down many times."""
    number = np.minimum(np.searchsorted(steps.end, own.start, side="right"), len(steps.end) - 1)
    undisturbed = own.where(np.isin(number, usual) & (own.start >= steps.start[number]))
    made = merge(undisturbed if len(undisturbed) else own, workers)
    steady = made.where((made.start >= steps.start[usual[0]]) & (made.end <= steps.end[usual[-1]]))
    return steady if len(steady.of(Kind.FETCH)) > 1 else made


def _mean(made: RecordTable) -> Estimate | None:
    return mean_of_series(made.end - made.start) if len(made) else None


def _busy(made: RecordTable) -> float | None:
    """Fraction of batch-preparation time spent running or runnable on a CPU, from the batches for which it was
    measured."""
    making = made.of(Kind.FETCH, Kind.COLLATE)
    measured = making.where(making.flags > 0)
    elapsed = measured.end - measured.start
    if not elapsed.sum():
        return None
    return float(np.average((measured.flags - 1.0) / BUSY_PARTS, weights=elapsed))


def _batches(facts: LoaderFacts, processes: int) -> int | None:
    """Batches per epoch in one of the processes that share the dataset; None if unknown."""
    if facts.dataset_length is None or facts.batch_size is None:
        return None
    return math.ceil(facts.dataset_length / max(1, facts.batch_size) / max(1, processes))


def _starts(
    layout: Layout, late: dict[int, int], ended: dict[int, int], iterators: set[int]
) -> tuple[int, float | None, Estimate | None]:
    """(starts after the first, steps between two, time of one including the end of the iterator before it). The first
    start is left out if there are others, because it also imports and fills caches; and so are those in unobserved
    steps, whose waits are unknown. Some starts are never recorded, so the distance is the median difference, not a
    count."""
    began = _of(layout.records.of(Kind.LOADER_START), iterators)
    if not len(began):
        return 0, None, None
    order = began.identity.tolist()
    before = [0, *(ended.get(each, 0) for each in order[:-1])]
    length = began.end - began.start + np.array([late.get(each, 0) for each in order], np.int64) + before
    if len(began) == 1:
        return 0, None, mean_of_series(length)
    steps = layout.timeline.steps
    number = np.minimum(np.searchsorted(steps.end, began.start, side="right"), len(steps.end) - 1)
    seen = steps.timed[number[1:]]
    times = length[1:][seen] if seen.any() else length[1:]
    return len(began) - 1, float(np.median(np.diff(number))) or None, mean_of_series(times)


def _settling(layout: Layout, iterators: set[int], usual: Int64) -> float:
    """Extra time of forward, backward and update in the steps after a start, ns per start (other work at the end of an
    epoch is the user's own). 0 if no start after the first was followed by usual steps, or if there are no others to
    compare with."""
    steps, began = layout.timeline.steps, _of(layout.records.of(Kind.LOADER_START), iterators)
    training = steps.phases[:, MODEL].sum(axis=1)
    behind = np.searchsorted(steps.end, began.start[1:], side="right")[:, None] + np.arange(SETTLING)
    others = training[np.setdiff1d(usual, behind)]
    seen = training[behind[np.isin(behind, usual).all(axis=1)]]
    if not len(seen) or len(others) < len(seen):
        return 0.0
    return max(0.0, float(seen.sum(axis=1).mean() - SETTLING * np.median(others)))
