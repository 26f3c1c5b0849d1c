"""Activity of the training thread: training or evaluating, what belongs to no step, and the phases of each step.

A loader trains when a backward or an update follows its batches, and a forward trains when gradients are on and it is
not fed by a loader that evaluates. A burst of forwards without gradients, between two signs of training, is one of
these:

* *inline*: few forwards, no loader, in at least half of the steps: a teacher, a target network, a generator's samples.
  They belong to the step's forward. If the model trains and was switched to evaluation mode, or if it is the only model
  and runs between the update and the next batch, they belong to its evaluation.
* *rollout*: no loader, and either many forwards in at least half of the steps, or top modules that were not switched to
  evaluation mode. The job has no training loader, or it starts with such a burst: reinforcement learning collects
  experience before and while the model trains. Some libraries act in evaluation mode: in a job with a library of
  environments, without a training loader and without rollouts in training mode, the mode does not count. With such a
  library, calls of a model that never trains (a target network) belong to the step's forward, where they recur.
* *evaluation*: everything else, from its first event to its last one, its loader and the loader's start included.

Work in at least half of the steps is part of the step and no segment: a checkpoint per step, a new loader for each
batch, an evaluation in every step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from steptime.analysis.steps import UPDATES, Boundaries, full_backwards
from steptime.analysis.timeline import Mode, Phase, RecordTable, Segment, SegmentKind, counted, merge
from steptime.arrays import Bool, Int64, unique
from steptime.intervals import EMPTY, Intervals, claim, join, subtract, union
from steptime.journal import Flag, Kind
from steptime.recording.recording import LoaderFacts

INLINE_FORWARDS = 4
"""Most forwards of an inline burst: a teacher or target network runs once or twice per batch, a rollout often."""
RECURRING = 0.5
"""Fraction of the steps: work that happens in at least this many belongs to the step."""
LEAST_STEPS = 4
"""Fewest steps for which work is called recurring. With fewer, one of three happens by chance."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Parts of the training thread's activity that train, and parts that do not. forwards: outermost forward calls that
    train (all, in a job that only infers), and inline ones. training_loaders: numbers of the iterators that feed
    training. evaluation: instants of evaluations between the steps; evaluation_in_steps: instants of evaluations that
    recur in most steps. rollout: instants of rollouts."""

    forwards: RecordTable
    training_loaders: tuple[int, ...]
    evaluation: Intervals
    evaluation_in_steps: Intervals
    rollout: Intervals


def find_activity(
    records: RecordTable, boundaries: Boundaries, facts: tuple[LoaderFacts, ...], *, acts: bool = False
) -> Activity:
    """Separates training from evaluation and rollouts. acts: True if the job uses a library of environments."""
    forwards = records.of(Kind.FORWARD).outermost()
    if boundaries.mode is Mode.FORWARD:
        iterators = unique(records.of(Kind.LOADER_NEXT).identity)
        return Activity(forwards, tuple(int(each) for each in iterators), EMPTY, EMPTY, EMPTY)
    loaders = _training_loaders(records, forwards, facts)
    trains = _trains(records, forwards, loaders) | forwards.inside(records.of(Kind.BACKWARD, *UPDATES))
    acts = acts and not loaders
    targets = _targets(forwards, trains, boundaries.ends) if acts else np.zeros(len(forwards), np.bool_)
    others = forwards.where(~targets)
    sampled, *untrained = _untrained(records, others, trains[~targets], loaders, boundaries.ends, acts=acts)
    in_steps = trains | targets
    in_steps[~targets] |= sampled
    return Activity(forwards.where(in_steps), loaders, *untrained)


def _targets(forwards: RecordTable, trains: Bool, ends: Int64) -> Bool:
    """Mask of the calls of models that never train and that most steps call a few times."""
    found = np.zeros(len(forwards), np.bool_)
    identities, calls = np.unique(forwards.identity, return_counts=True)
    few = identities[(calls >= RECURRING * len(ends)) & (calls <= INLINE_FORWARDS * len(ends))]
    for identity in np.setdiff1d(few, forwards.identity[trains]).tolist():
        own = forwards.identity == identity
        if is_recurring(forwards.start[own], ends):
            found |= own
    return found


def _training_loaders(records: RecordTable, forwards: RecordTable, facts: tuple[LoaderFacts, ...]) -> tuple[int, ...]:
    """Iterators that feed training: those whose batches are mostly followed by a backward or an update before any
    loader is asked again. An iterator without a vote follows the other iterators of its loader."""
    asked = records.of(Kind.LOADER_NEXT)
    if not len(asked):
        return ()
    until = np.append(asked.start[1:], np.iinfo(np.int64).max)
    signs = merge(full_backwards(records), records.of(*UPDATES))
    trained = counted(signs.start, asked.end, until) > 0
    called = counted(forwards.start, asked.end, until) > 0
    votes = np.where(trained, 1, np.where(called, -1, 0)) * ~asked.flagged(Flag.EXHAUSTED)
    iterators, number = np.unique(asked.identity, return_inverse=True)
    own = dict(zip(iterators.tolist(), np.bincount(number, weights=votes).tolist(), strict=True))
    loader = {fact.identity: fact.loader for fact in facts}
    shared: dict[int | None, float] = defaultdict(float)
    for each, mine in own.items():
        shared[loader.get(each)] += mine
    shared.pop(None, None)  # an iterator of which nobody knows the loader has no others
    return tuple(each for each, mine in own.items() if mine > 0 or (mine == 0 and shared.get(loader.get(each), 0) > 0))


def _trains(records: RecordTable, forwards: RecordTable, loaders: tuple[int, ...]) -> Bool:
    """Mask of the forwards that train: gradients are on, and it is no evaluation that forgot to switch them off. Such
    an evaluation is a forward in evaluation mode of a top module that also trains, or a forward that is fed by a loader
    which does not train and that no backward follows."""
    gradient, training = forwards.flagged(Flag.GRADIENT), forwards.flagged(Flag.TRAINING)
    switched = ~training & np.isin(forwards.identity, forwards.identity[gradient & training])
    asked = records.of(Kind.LOADER_NEXT)
    if not len(asked):
        return gradient & ~switched
    source = np.searchsorted(asked.start, forwards.start, side="right") - 1
    fed = (source >= 0) & ~np.isin(asked.identity[np.maximum(source, 0)], loaders)
    until = np.append(asked.start, np.iinfo(np.int64).max)[source + 1]
    unused = counted(full_backwards(records).start, forwards.end, until) == 0
    trains: Bool = gradient & ~switched & ~(fed & unused)
    return trains


def _untrained(
    records: RecordTable, forwards: RecordTable, trains: Bool, loaders: tuple[int, ...], ends: Int64, *, acts: bool
) -> tuple[Bool, Intervals, Intervals, Intervals]:
    """(mask over `forwards` of those that belong to the step, evaluations between the steps, evaluations in the steps,
    rollouts). Works on bursts: runs of events that do not train, between two signs of training. acts: evaluation
    mode may be one to act in."""
    asked = records.of(Kind.LOADER_NEXT, Kind.LOADER_START)
    feeds = np.isin(asked.identity, np.array(loaders, np.int64))
    training = merge(records.of(Kind.BACKWARD, *UPDATES), forwards.where(trains), asked.where(feeds))
    events = merge(asked.where(~feeds), forwards.where(~trains))
    signs = np.searchsorted(training.start, events.start)
    heads = np.concatenate(([True], signs[1:] != signs[:-1])) if len(events) else np.zeros(0, np.bool_)
    is_call = events.kind == int(Kind.FORWARD)
    modes = unique(forwards.identity[trains & forwards.flagged(Flag.TRAINING)])
    of_trained = is_call & np.isin(events.identity, modes)
    in_training = np.bincount(np.cumsum(heads) - 1, of_trained & events.flagged(Flag.TRAINING))
    acts = acts and in_training.max(initial=0) <= INLINE_FORWARDS
    if not loaders and not acts:
        heads[_switches(events, of_trained)] = True
    number, count = np.cumsum(heads) - 1, int(heads.sum())
    start, end = events.start[heads], np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(end, number, events.end)
    calls = np.bincount(number[is_call], minlength=count)
    loading = np.bincount(number[~is_call], minlength=count) > 0
    few, many = ~loading & (calls <= INLINE_FORWARDS), ~loading & (calls > INLINE_FORWARDS)
    inline = few & is_recurring(start[few], ends)
    switched = of_trained & ~events.flagged(Flag.TRAINING) & (not acts)
    rollout = many & is_recurring(start[many], ends)
    first = bool((many & (signs[heads] == 0)).any())
    if not loaders or first:  # unless a top module that trains was in evaluation mode
        rollout |= (many if loaders else ~loading & ~inline) & (np.bincount(number[switched], minlength=count) == 0)
    evaluating, per_step = ~inline & ~rollout, np.zeros(count, np.bool_)
    per_step[evaluating] = is_recurring(start[evaluating], ends)
    apart = evaluating & ~per_step
    checking = is_call & inline[number] & (switched | (_is_check(training, signs) & (len(modes) == 1)))
    sampled = np.zeros(len(forwards), np.bool_)
    sampled[~trains] = (inline[number] & ~checking)[is_call]
    inside = join(union(start[per_step], end[per_step]), union(events.start[checking], events.end[checking]))
    return sampled, union(start[apart], end[apart]), inside, union(start[rollout], end[rollout])


def _switches(events: RecordTable, of_trained: Bool) -> Int64:
    """Events before which a model that trains changed between evaluation mode and training mode. They split bursts: an
    agent is evaluated, and the next rollout follows without an update between them."""
    called = np.flatnonzero(of_trained)
    mode = events.flagged(Flag.TRAINING)[called]
    found: Int64 = called[1:][mode[1:] != mode[:-1]]
    return found


def _is_check(training: RecordTable, signs: Int64) -> Bool:
    """Mask of the events between an update and the training loader's next batch. signs: training events before each."""
    if not len(training):
        return np.zeros(len(signs), np.bool_)
    before, after = training.kind[np.maximum(signs - 1, 0)], training.kind[np.minimum(signs, len(training) - 1)]
    check: Bool = np.isin(before, [int(kind) for kind in UPDATES]) & (after == int(Kind.LOADER_NEXT))
    return check


def is_recurring(start: Int64, ends: Int64) -> bool:
    """True if what starts at these times happens in at least half of the steps. ends: ends of the steps, ns."""
    steps = unique(np.searchsorted(ends, start))
    steps = steps[steps < len(ends)]
    return len(ends) >= LEAST_STEPS and len(steps) >= RECURRING * len(ends)


EXCLUDING = (SegmentKind.EVALUATION, SegmentKind.CHECKPOINT, SegmentKind.COMPILATION, SegmentKind.THINNED)
"""Segments that exclude their step from statistics, because caches are cold, threads asleep or steps missing. A rollout
or a loader's start is subtracted exactly, and the rest of its step is as good as any."""


@dataclass(frozen=True, slots=True)
class SegmentClaims:
    """Instants that belong to no step. sets: instants of each kind of segment, disjoint. loader_starts: starts of the
    training loader that recur, and therefore belong to the steps."""

    sets: dict[SegmentKind, Intervals]
    loader_starts: Intervals

    @property
    def all(self) -> Intervals:
        """Instants in any segment."""
        return join(*self.sets.values())

    @property
    def excluding(self) -> Intervals:
        """Instants in segments that exclude their step from statistics (see `EXCLUDING`)."""
        return join(*(self.sets[kind] for kind in EXCLUDING))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments of all kinds in time order."""
        found = [
            Segment(kind, start, end)
            for kind, held in self.sets.items()
            for start, end in zip(held.start.tolist(), held.end.tolist(), strict=True)
        ]
        return tuple(sorted(found, key=lambda segment: segment.start))


def find_segments(records: RecordTable, probe: RecordTable, activity: Activity, ends: Int64) -> SegmentClaims:
    """Instants that belong to no step, by kind of segment. probe: records of the probe's own work, from any thread;
    ends: ends of the steps, ns."""
    training = records.of(Kind.LOADER_START)
    training = training.where(np.isin(training.identity, np.array(activity.training_loaders, np.int64)))
    busy = records.of(Kind.FORWARD, Kind.BACKWARD, *UPDATES).intervals
    starts = subtract(training.intervals, busy)
    wanted = {  # ours first; then what is large holds what is small (a checkpoint inside an evaluation)
        SegmentKind.PAUSE: probe.of(Kind.PAUSE).intervals,
        SegmentKind.EVALUATION: activity.evaluation,
        SegmentKind.ROLLOUT: activity.rollout,
        SegmentKind.CHECKPOINT: _rare(records.of(Kind.CHECKPOINT).intervals, ends),
        SegmentKind.COMPILATION: _rare(records.of(Kind.COMPILE).intervals, ends),
        SegmentKind.LOADER_START: _rare(starts, ends),
        SegmentKind.THINNED: probe.of(Kind.THINNED).intervals,
    }
    taken, sets = EMPTY, {}
    for kind, held in wanted.items():
        sets[kind] = subtract(held, taken)
        taken = join(taken, held)
    return SegmentClaims(sets, EMPTY if len(wanted[SegmentKind.LOADER_START]) else starts)


def _rare(found: Intervals, ends: Int64) -> Intervals:
    return EMPTY if is_recurring(found.start, ends) else found


@dataclass(frozen=True, slots=True)
class TrainingWork:
    """Instrumented parts of the training thread. updates: optimizer updates, each of which starts after the backward in
    its closure, if any (see `_hoisted`). evaluation: evaluations inside steps. top: all these parts as disjoint
    intervals in time order, of kinds LOADER_NEXT, FORWARD, BACKWARD and OPTIMIZER_STEP. The gaps between them are not
    instrumented."""

    loader: Intervals
    forward: Intervals
    backward: Intervals
    updates: Intervals
    updates_in_backward: Intervals
    evaluation: Intervals
    top: RecordTable


def find_work(records: RecordTable, activity: Activity, starts: Intervals) -> TrainingWork:
    """Instrumented parts of the training thread. starts: starts of the training loader that belong to the steps."""
    asked = records.of(Kind.LOADER_NEXT)
    asked = asked.where(np.isin(asked.identity, np.array(activity.training_loaders, np.int64)))
    backward = records.of(Kind.BACKWARD).outermost()
    updates = records.of(*UPDATES).outermost()
    in_backward = updates.inside(backward)
    hoisted = _hoisted(updates.where(~in_backward), backward)
    zeroing = records.of(Kind.ZERO_GRAD)
    outside = merge(hoisted, zeroing.where(~zeroing.inside(backward)))
    return TrainingWork(
        loader=join(asked.intervals, starts),
        forward=activity.forwards.intervals,
        backward=backward.intervals,
        updates=outside.intervals,
        updates_in_backward=updates.where(in_backward).intervals,
        evaluation=activity.evaluation_in_steps,
        top=merge(asked, activity.forwards, backward, outside).outermost(),
    )


def split(start: Int64, end: Int64, claims: SegmentClaims, work: TrainingWork) -> tuple[Int64, Int64]:
    """(durations, phases) of the steps [start, end), as in `timeline.Steps`. Each instant goes to the first set that
    holds it. Segments are subtracted and REST is the remainder, so each row of phases sums to its duration exactly."""
    order = (
        claims.all, work.loader, work.updates_in_backward, work.backward, work.forward, work.updates, work.evaluation,
    )  # fmt: skip
    columns = claim(start, end, order)
    phases = np.zeros((len(start), len(Phase)), np.int64)
    phases[:, Phase.INPUT] = columns[:, 1]
    phases[:, Phase.OPTIMIZER] = columns[:, 2] + columns[:, 5]
    phases[:, Phase.BACKWARD] = columns[:, 3]
    phases[:, Phase.FORWARD] = columns[:, 4]
    phases[:, Phase.EVALUATION] = columns[:, 6]
    phases[:, Phase.REST] = columns[:, 7]
    return end - start - columns[:, 0], phases


def _hoisted(updates: RecordTable, backward: RecordTable) -> RecordTable:
    """Updates, with the start moved to the end of the backward where a closure holds exactly one (Lightning): the time
    before is the step's own code. A closure with more backwards (LBFGS) stays whole, as the optimizer's own work."""
    full = backward.where(~backward.flagged(Flag.PARTIAL))
    first = np.searchsorted(full.start, updates.start)
    one = np.searchsorted(full.start, updates.end) - first == 1
    start = updates.start.copy()
    start[one] = full.end[first[one]]
    return RecordTable(updates.kind, updates.flags, updates.identity, np.minimum(start, updates.end), updates.end)
