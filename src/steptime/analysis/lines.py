"""The lines of the user's own code: when each was the innermost one, and what each is for.

The role of a line comes from the clock first: it contains a backward, or a loader's next. If the clock sees nothing, it
comes from the names that flow through the line. A line prepares the batch if a name that it binds reaches, through
other lines, a line with a forward. Lines that read the forward's results (a loss, a metric) never do.

Time between the instrumented parts of a step is exact in steps with line records; in others it is scaled from those, at
most to the gap itself.

The line table says the same as a sum: every nanosecond of the line-timed steps belongs to one line, or to none that was
timed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

import numpy as np

from steptime.analysis.activity import Activity, SegmentClaims, TrainingWork, split
from steptime.analysis.operators import FEWEST_DURING_A_STALL
from steptime.analysis.step_patterns import Period, find_period
from steptime.analysis.timeline import Phase, RecordTable, Steps
from steptime.arrays import Bool, Float64, Int64, unique
from steptime.intervals import Intervals, join, measure, union
from steptime.journal import Kind
from steptime.quantities import SourceLine
from steptime.recording.recording import CodeFacts, CodeLine, Process
from steptime.trace.call_tree import ROOT, CallTree, call_tree, exclusive_spans, nearest_ancestor

CARRIERS = frozenset({"self", "cls"})
"""Names that connect every line with every other; following them would make all lines a part of the batch."""
COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Names of code objects that belong to a line, up to Python 3.11."""


def identity_of(code: CodeFacts, line: CodeLine) -> int:
    """Identity that the LINE records of a line of code carry."""
    return code.base + line.line - code.first_line


def source_at(code: CodeFacts, line: CodeLine) -> SourceLine:
    """Source line for a line of a code object, as reports name it."""
    return SourceLine(code.file, line.line, code.function, line.text)


def sources_of(process: Process) -> dict[int, SourceLine]:
    """Source lines of a process's timed lines, by their identities."""
    return {identity_of(code, line): source_at(code, line) for code in process.codes for line in code.lines}


def targets_of(codes: tuple[CodeFacts, ...], forwards: set[int]) -> list[list[CodeLine]]:
    """Lines of each code object that contain a training forward, or else lines that call a function with such lines."""
    holding = [[line for line in code.lines if identity_of(code, line) in forwards] for code in codes]
    training = {_name(code) for code, lines in zip(codes, holding, strict=True) if lines}
    return [
        lines or [line for line in code.lines if (training - {_name(code)}).intersection(line.loads)]
        for code, lines in zip(codes, holding, strict=True)
    ]


def find_preparing(
    codes: tuple[CodeFacts, ...],
    forwards: set[int],
    evaluating: set[int],
    known: set[int],
    leading: frozenset[int] = frozenset(),
) -> set[int]:
    """Identities of the lines that prepare the batch, found by following variables to the lines with a forward.
    forwards, evaluating: lines that the clock saw in a training forward or an evaluation. known: all lines whose role
    the clock has shown; none of these is returned. leading: lines that ran before the forward inside a target's call. A
    function that a target calls before its forward makes the forward's arguments."""
    targets = targets_of(codes, forwards)
    found: set[int] = set()
    for code, lines in zip(codes, targets, strict=True):
        found |= _reaching(code, lines, known) if lines else set()
    ahead = {identity_of(code, line) for code, lines in zip(codes, targets, strict=True) for line in lines}
    found |= (ahead & leading) - known
    while True:  # a traced function that only preparing lines call prepares with all its lines (get_batch)
        called = [code for code in codes if _is_called_to_prepare(code, codes, found, evaluating)]
        plain = [code for code, lines in zip(codes, targets, strict=True) if not lines]
        called += [code for code in plain if _makes_arguments(code, codes, found | ahead, evaluating, leading)]
        places = {(code.file, line.line) for code in codes for line in code.lines if identity_of(code, line) in found}
        called += [
            code
            for code in plain
            if _name(code) in COMPREHENSIONS and {(code.file, each.line) for each in code.lines} <= places
        ]
        entered = {identity_of(code, line) for code in called for line in code.lines} - known - found
        if not entered:
            return found
        found |= entered


def _name(code: CodeFacts) -> str:
    return code.function.rpartition(".")[2]


def _reaching(code: CodeFacts, targets: list[CodeLine], known: set[int]) -> set[int]:
    """Lines whose names reach a target. Lines after a target that read its results (a loss) do not count."""
    results = {name for line in targets for name in line.stores} - CARRIERS
    first, last = min(line.line for line in targets), max(line.line for line in targets)
    for line in sorted(code.lines, key=lambda line: line.line):
        if line.line > last and results.intersection(line.loads):
            results |= set(line.stores) - CARRIERS
    free = {
        identity_of(code, line): line
        for line in code.lines
        if line not in targets and (line.line < first or not results.intersection(line.loads))
    }
    found: set[int] = set()
    new = targets
    wanted: set[str] = set()
    while new:
        wanted |= {name for line in new for name in line.loads} - CARRIERS
        reached = {
            each
            for each, line in free.items()
            if each not in known and each not in found and wanted.intersection(line.stores)
        }
        found |= reached
        new = [free[each] for each in reached]
    return found


def _is_called_to_prepare(
    code: CodeFacts, codes: tuple[CodeFacts, ...], preparing: set[int], evaluating: set[int]
) -> bool:
    name = _name(code)
    callers = {
        identity_of(other, line) for other in codes if other is not code for line in other.lines if name in line.loads
    } - evaluating
    return bool(callers) and callers <= preparing


def _makes_arguments(
    code: CodeFacts, codes: tuple[CodeFacts, ...], calling: set[int], evaluating: set[int], leading: frozenset[int]
) -> bool:
    """True if a function ran before the forward inside a target that calls it. calling: targets and preparing lines."""
    ran = any(identity_of(code, line) in leading for line in code.lines)
    return ran and _is_called_to_prepare(code, codes, calling, evaluating)


MOST = 0.9
"""Fraction of a gap: if preparing lines take this much of it in the line-timed steps, others use their fraction."""


@dataclass(frozen=True, slots=True, eq=False)
class StepGaps:
    """Gaps between the instrumented parts of the steps. step: index of the step; neighbours: (kind before, kind after)
    as one number; start, end: ns. Segments are not subtracted yet."""

    step: Int64
    neighbours: Int64
    start: Int64
    end: Int64


def estimate(gaps: StepGaps, segments: Intervals, lines: LineRoles, lined: Bool) -> tuple[Int64, Int64]:
    """(input, transfer) time in the gaps of each step, ns: exact in steps with line records, estimated in the others.
    An estimate is the median of gaps with the same neighbours in line-timed steps, and at most the gap itself."""
    gap = (gaps.end - gaps.start) - measure(segments, gaps.start, gaps.end)
    result = np.zeros((2, len(lined)), np.int64)
    is_lined = lined[gaps.step]
    free = gap.copy()
    for row, role in enumerate((LineRole.INPUT, LineRole.TRANSFER)):
        exact = np.minimum(measure(lines.of(role), gaps.start, gaps.end), free)
        guess = _guess(gaps, gap, exact, is_lined)
        value = np.where(is_lined, exact, np.minimum(guess, free))
        free -= value
        np.add.at(result[row], gaps.step, value)
    return result[0], result[1]


def _guess(gaps: StepGaps, gap: Int64, exact: Int64, lined: Bool) -> Int64:
    guess = np.zeros(len(gap), np.int64)
    for neighbours in unique(gaps.neighbours[lined & (exact > 0)]):
        same = gaps.neighbours == neighbours
        known = same & lined
        share = exact[known].sum() / max(1, gap[known].sum())
        guess[same] = gap[same] * share if share >= MOST else np.median(exact[known])
    return guess


def find_gaps(top: RecordTable, start: Int64, end: Int64) -> StepGaps:
    """Gaps between the instrumented parts in `top`, split at the boundaries of the steps [start, end)."""
    if not len(start):
        nothing = np.zeros(0, np.int64)
        return StepGaps(nothing, nothing, nothing, nothing)
    starts = np.concatenate((start[:1], top.end))
    stops = np.concatenate((top.start, end[-1:]))
    kinds = np.concatenate(([0], top.kind.astype(np.int64), [0]))
    neighbours = kinds[:-1] * 256 + kinds[1:]
    step = np.searchsorted(end, starts, side="right")
    inside = (stops > starts) & (step < len(end)) & (starts >= start[0])
    step, starts, stops, neighbours = step[inside], starts[inside], stops[inside], neighbours[inside]
    return StepGaps(step, neighbours, starts, np.minimum(stops, end[step]))


LineRoleName: TypeAlias = Literal["input", "transfer", "forward", "backward", "optimizer", "evaluation", "python"]
"""Names of a line's role in records."""


class LineRole(Enum):
    """Purpose of a line in the step."""

    INPUT = "input"
    TRANSFER = "transfer"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    PYTHON = "python"

    @property
    def title(self) -> LineRoleName:
        """Name of the role in records."""
        name: LineRoleName = self.value
        return name


SLIVER = 0.01
"""Fraction of a line's time: with less in an interval, the line only touches it, because two clocks differ."""
TRANSFER_CALLS = ("to", "cuda", "copy_")
TRANSFER_TEXT = re.compile(r"\.(?:to|cuda|copy_)\(")


@dataclass(frozen=True, slots=True, eq=False)
class LineTimes:
    """Intervals during which each timed line was the innermost one, one row each: identity, start and end in ns.
    hit_identity, hit_start: identity and start of each execution of a line; hit_cost: ns that recording it took."""

    identity: Int64
    start: Int64
    end: Int64
    hit_identity: Int64
    hit_start: Int64
    hit_cost: Int64

    def of(self, identities: Iterable[int]) -> Intervals:
        """Instants in which lines with these identities were the innermost."""
        mask = np.isin(self.identity, list(identities))
        return union(self.start[mask], self.end[mask])


@dataclass(frozen=True, slots=True)
class LineRoles:
    """Role of each timed line, by the identity of its LINE records, and the lines' times."""

    times: LineTimes
    roles: dict[int, LineRole] = field(default_factory=dict)

    def of(self, wanted: LineRole) -> Intervals:
        """Instants of all lines with this role."""
        return self.times.of(each for each, role in self.roles.items() if role is wanted)


def find_lines(process: Process, training_records: RecordTable, activity: Activity, work: TrainingWork) -> LineRoles:
    """Times and roles of a process's timed lines."""
    records = training_records.of(Kind.LINE)
    made = call_tree(records.start, records.end)
    spans = exclusive_spans(made)
    owner = records.identity[made.rows[spans.owner]]
    cost = np.zeros(len(records), np.int64)
    if process.line_cost is not None:
        cost = process.line_cost.line + records.flags.astype(np.int64) * process.line_cost.call
    times = LineTimes(owner, spans.start, spans.end, records.identity, records.start, cost)
    seen = _roles_by_clock(times, activity, work)
    forwards = {each for each, role in seen.items() if role is LineRole.FORWARD}
    evaluating = {each for each, role in seen.items() if role is LineRole.EVALUATION}
    ahead = targets_of(process.codes, forwards)
    targets = {identity_of(code, line) for code, each in zip(process.codes, ahead, strict=True) for line in each}
    leading = _leading(times, made, spans.owner, targets, work)
    preparing = find_preparing(process.codes, forwards, evaluating, set(seen), leading)
    on_device = process.facts.device != "cpu"
    moved = {site.site.place for site in process.sites if site.name in TRANSFER_CALLS}
    roles = dict.fromkeys(unique(records.identity).tolist(), LineRole.PYTHON) | seen
    for code in process.codes:
        for line in code.lines:
            if (each := identity_of(code, line)) in preparing:
                moves = on_device and ((code.file, line.line) in moved or TRANSFER_TEXT.search(line.text))
                roles[each] = LineRole.TRANSFER if moves else LineRole.INPUT
    return LineRoles(times, roles)


def _leading(times: LineTimes, made: CallTree, owner: Int64, targets: set[int], work: TrainingWork) -> frozenset[int]:
    """Lines that spend MOST of their time inside a target before its forward. owner: positions in `made`, by row."""
    if not len(owner):
        return frozenset()
    target = np.isin(times.hit_identity[made.rows], list(targets))
    around = nearest_ancestor(made.parent, target)[owner]
    begun = np.append(work.forward.start, np.iinfo(np.int64).max)
    first = begun[np.searchsorted(work.forward.start, made.start[around])]
    early = (around != ROOT) & (first < made.end[around]) & (times.end <= first)
    identities, number = np.unique(times.identity, return_inverse=True)
    length = times.end - times.start
    share = np.bincount(number, length * early) >= MOST * np.bincount(number, length)
    return frozenset(identities[share].tolist())


TRAINED = (LineRole.FORWARD, LineRole.BACKWARD, LineRole.OPTIMIZER)


def _roles_by_clock(times: LineTimes, activity: Activity, work: TrainingWork) -> dict[int, LineRole]:
    """Role of each line by the instrumented part that takes most of its time, if that is more than a sliver. A line
    that both waits for the loader and trains (a loop in one line, a call of the whole step) does not prepare the batch
    in the rest of its time: its role is training."""
    parts = {
        LineRole.EVALUATION: join(activity.evaluation, work.evaluation),
        LineRole.INPUT: work.loader,
        LineRole.FORWARD: work.forward,
        LineRole.BACKWARD: work.backward,
        LineRole.OPTIMIZER: work.updates,
    }
    identities, number = np.unique(times.identity, return_inverse=True)
    if not len(identities):
        return {}
    whole = np.bincount(number, weights=times.end - times.start)
    insides = (measure(instants, times.start, times.end) for instants in parts.values())
    held = np.stack([np.bincount(number, weights=inside) for inside in insides])
    roles = list(parts)
    trained = held[[roles.index(each) for each in TRAINED]].max(axis=0) > SLIVER * whole
    held[roles.index(LineRole.INPUT), trained] = 0
    largest = held.argmax(axis=0).tolist()
    known = held.max(axis=0) > SLIVER * whole
    return {each: roles[row] for each, row, sure in zip(identities.tolist(), largest, known, strict=True) if sure}


GAPS = {LineRole.INPUT: Phase.INPUT, LineRole.TRANSFER: Phase.TRANSFER}
"""Phase of a line's time outside of the loader and the model, by role; REST for other roles."""

FAR_LONGER = 1.5
"""Factor on the REST phase of line-timed steps. A REST longer than this in other steps is not noise, since line timing
makes REST longer, not shorter."""


@dataclass(frozen=True, slots=True, eq=False)
class LinePieces:
    """Intervals during which each line was the innermost one, split at the boundaries of the steps. row, step: row and
    column in the `LineTable`. rest: ns outside of segments, the loader and the model."""

    row: Int64
    step: Int64
    start: Int64
    end: Int64
    rest: Int64


@dataclass(frozen=True, slots=True, eq=False)
class LineTable:
    """Time of each line in the line-timed steps. identities: identities of the lines' records, (k,). steps: durations
    of the steps, (m,), ns. spent: time of each line by step and phase, (k, m, phases), ns; timing: part of it that
    recording the lines took, (k, m), ns. untimed: time in no timed line, (m,), ns. Raises ValueError if lines and
    untimed time do not sum to the steps, to the nanosecond."""

    identities: Int64
    steps: Int64
    spent: Int64
    timing: Int64
    untimed: Int64
    pieces: LinePieces

    def __post_init__(self) -> None:
        if (self.untimed < 0).any() or (self.spent.sum(axis=(0, 2)) + self.untimed != self.steps).any():
            raise ValueError("the lines of a step do not add up to it")


def line_table(steps: Steps, lines: LineRoles, claims: SegmentClaims, work: TrainingWork) -> LineTable:
    times, lined = lines.times, np.flatnonzero(steps.lined)
    identities = unique(times.hit_identity)  # by a coarse clock some may have taken no time
    first = np.searchsorted(times.end, steps.start[lined], side="right")
    last = np.searchsorted(times.start, steps.end[lined])
    rows = np.concatenate([np.arange(0), *map(np.arange, first, last)]).astype(np.int64)
    column = np.repeat(np.arange(len(lined)), np.maximum(0, last - first))
    start = np.maximum(times.start[rows], steps.start[lined][column])
    end = np.minimum(times.end[rows], steps.end[lined][column])
    row = np.searchsorted(identities, times.identity[rows])
    duration, phases = split(start, end, claims, work)
    spent = np.zeros((len(identities), len(lined), len(Phase)), np.int64)
    np.add.at(spent, (row, column), phases)
    for number, each in enumerate(identities.tolist()):
        if (named := GAPS.get(lines.roles[each])) is not None:
            spent[number, :, named] += spent[number, :, Phase.REST]
            spent[number, :, Phase.REST] = 0
    untimed = steps.duration[lined] - np.bincount(column, duration, len(lined)).astype(np.int64)
    pieces = LinePieces(row, column, start, end, phases[:, Phase.REST])
    timing = np.zeros((len(identities), len(lined)), np.int64)
    when = np.minimum(np.searchsorted(steps.end[lined], times.hit_start, side="right"), len(lined) - 1)
    inside = (times.hit_start >= steps.start[lined][when]) & (times.hit_start < steps.end[lined][when])
    np.add.at(timing, (np.searchsorted(identities, times.hit_identity[inside]), when[inside]), times.hit_cost[inside])
    return LineTable(identities, steps.duration[lined], spent, timing, untimed, pieces)


@dataclass(frozen=True, slots=True, eq=False)
class LinedTurns:
    """Weights of the line-timed steps, which may hold too many or too few of the periodically slow steps. period:
    period of the slow steps, None without one. slow: mask of the slow steps, (m,). weights: weight of each step, (m,),
    mean 1."""

    period: Period | None
    slow: Bool
    weights: Float64

    def levelled(self, values: Float64) -> Float64:
        """The values, (m,), with slow steps and others shifted to one mean. The difference of the means is no
        uncertainty, because the weights account for the number of slow steps. Unchanged if only one step is slow, since
        its spread is unknown."""
        found = values.copy()
        if self.slow.sum() > 1:
            for alike in (self.slow, ~self.slow):
                found[alike] += values.mean() - values[alike].mean()
        return found


def lined_turns(steps: Steps) -> LinedTurns:
    """Weights of the line-timed steps: all 1 if all or none of these are slow, since the others are then unknown."""
    lined, period = np.flatnonzero(steps.lined), find_period(steps)
    slow = np.zeros(len(lined), np.bool_)
    if period is not None and len(lined):
        spent = steps.phases[lined, period.phase]
        extra = period.growth[0] if period.growth is not None else period.extra
        slow = spent > spent.min() + extra / 2
    weights = np.ones(len(lined))
    if period is not None and slow.any() and not slow.all():
        weights = np.where(slow, 1 / (period.every * slow.mean()), (1 - 1 / period.every) / (~slow).mean())
    return LinedTurns(period, slow, weights)


def usual_spent(
    table: LineTable, lined: Int64, usual: Int64, wrapped: Bool, turns: LinedTurns
) -> tuple[Float64, Float64]:
    """(spent, scales): time of each line in a usual step, (k, m, phases), ns, and the factor from each line's time in
    the line-timed steps to a usual step, (k, phases). lined, usual: phases of the line-timed steps and of the usual
    steps, (m, phases) and (n, phases), ns. wrapped: mask of the lines that hold a call which the probe wraps, (k,).
    Each line-timed step counts by its weight.

    Line timing slows a step, and lines with many calls most: its known cost is subtracted first. In these steps the
    probe also listens to every wrapped call, which it usually does not. The excess in REST is subtracted from the lines
    with such calls. Then each phase is scaled to the usual steps. So all lines together take no longer than a usual
    step, and the lines of a phase no longer than the phase.

    If REST is far longer in the usual steps, some of them do work that no line-timed step did (a plot every so many
    steps). Then the median REST counts, or the REST that the slowdown of the other phases explains. This extra time
    goes to the job's own lines, not to lines whose calls the probe wraps."""
    own = table.spent * own_time(table)[:, :, None]
    spent = without_stalls(own, turns) * turns.weights[:, None]
    timed = spent.mean(axis=1).sum(axis=0)
    left_out = (table.spent * turns.weights[:, None] - spent).mean(axis=1).sum(axis=0)
    whole = np.maximum(timed, (lined * turns.weights[:, None]).mean(axis=0) - left_out)
    longer = max(0.0, whole[Phase.REST] - usual[:, Phase.REST].mean())
    held = spent[wrapped, :, Phase.REST].mean(axis=1).sum()
    listening = min(longer, held)
    whole[Phase.REST] -= listening
    centre = usual.mean(axis=0)
    expected = whole[Phase.REST] * max(1.0, _slowed(centre, whole))
    if centre[Phase.REST] > FAR_LONGER * expected:
        centre[Phase.REST] = min(centre[Phase.REST], max(expected, np.median(usual[:, Phase.REST])))
    every = np.divide(centre, whole, out=np.ones(len(Phase)), where=whole > 0)
    scales = np.tile(every, (len(spent), 1))
    scales[wrapped, Phase.REST] *= 1 - listening / held if held > 0 else 1.0
    if every[Phase.REST] > 1 and whole[Phase.REST] > held:
        scales[wrapped, Phase.REST] = 1.0
        scales[~wrapped, Phase.REST] = (centre[Phase.REST] - held) / (whole[Phase.REST] - held)
    return spent * scales[:, None, :], scales


def _slowed(centre: Float64, whole: Float64) -> float:
    """Factor by which the phases other than REST are longer than in the line-timed steps."""
    timed = np.delete(whole, Phase.REST).sum()
    return float(np.delete(centre, Phase.REST).sum() / timed) if timed > 0 else 1.0


def own_time(table: LineTable) -> Float64:
    """Fraction of each line's time in each step that is its own and not the cost of timing it, (k, m)."""
    whole = table.spent.sum(axis=2)
    timing = np.minimum(table.timing, whole)
    share: Float64 = np.divide(timing, whole, out=np.zeros(whole.shape), where=whole > 0)
    return 1.0 - share


def without_stalls(values: Float64, turns: LinedTurns) -> Float64:
    """Times by line and step, with each line's longest step capped at its second longest, among periodically slow steps
    and others separately. One stall is no habit."""
    capped = values.copy()
    for chosen in (turns.slow, ~turns.slow):
        if chosen.sum() > FEWEST_DURING_A_STALL:
            alike = values[:, chosen]
            capped[:, chosen] = np.minimum(alike, np.sort(alike, axis=1)[:, -2:-1])
    return capped
