"""The lines of the user's own code: when each was the innermost one, and what each is for.

One law: what a line does is seen by the clock first (it holds a backward, a loader's next …) and told by the names that
flow through it only where the clock sees nothing: a line that makes what the model is then called with prepares the
batch.

Names that flow through a loop: which lines make what the model is then called with.

One law: a line prepares the batch when a name that it binds reaches, through other lines, a line that holds a forward;
lines that read the forward's results are none of these, however they go on (a loss, a metric).

What lies between the instrumented parts of a step, and how much of it is the user's own batch preparation.

One law: in steps with line records it is exact; in others it is what the lined steps showed, at most the gap itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from steptime.analysis.activity import Activity, TrainingWork
from steptime.analysis.timeline import RecordTable
from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, measure, union
from steptime.journal import Kind
from steptime.recording.recording import CodeFacts, CodeLine, Process, SiteFacts
from steptime.trace.call_tree import call_tree, exclusive_spans

CARRIERS = frozenset({"self", "cls"})
"""Names through which everything flows to everything; they would make every line a part of the batch."""


def identity_of(code: CodeFacts, line: CodeLine) -> int:
    """The identity that the LINE records of a line carry."""
    return code.base + line.line - code.first_line


def find_preparing(codes: tuple[CodeFacts, ...], forwards: set[int], evaluating: set[int], known: set[int]) -> set[int]:
    """Identities of the lines that make the batch, by the names that flow to the lines that hold a forward.

    forwards, evaluating: lines that the clock saw in a training forward or an evaluation; known: all lines
    whose role the clock has told; none of these is returned.
    """
    return _Flow(codes, forwards, evaluating, known).prepares


class _Flow:
    """Names flowing through the lines of each function; `prepares`: identities of lines that make the batch."""

    def __init__(self, codes: tuple[CodeFacts, ...], forwards: set[int], evaluating: set[int], known: set[int]) -> None:
        self._codes, self._forwards, self._evaluating, self._known = codes, forwards, evaluating, known
        self.prepares: set[int] = set()
        training = {code.function.rpartition(".")[2] for code in codes if self._targets(code, frozenset())}
        for code in codes:
            targets = self._targets(code, frozenset(training))
            if targets:
                self.prepares |= self._ancestors(code, targets)
        self._enter_called_functions()

    def _targets(self, code: CodeFacts, training: frozenset[str]) -> list[CodeLine]:
        """Lines that hold a forward, or else call a function that does."""
        own = [line for line in code.lines if identity_of(code, line) in self._forwards]
        others = training - {code.function.rpartition(".")[2]}
        return own or [line for line in code.lines if others.intersection(line.loads)]

    def _ancestors(self, code: CodeFacts, targets: list[CodeLine]) -> set[int]:
        """Lines whose names reach a target; what comes after a target and reads its results does not count (a loss)."""
        free = [line for line in code.lines if identity_of(code, line) not in self._known and line not in targets]
        results = self._results(code, targets)
        first = min(line.line for line in targets)
        free = [line for line in free if line.line < first or not results.intersection(line.loads)]
        wanted = {name for line in targets for name in line.loads} - CARRIERS
        found: set[int] = set()
        while True:
            new = [line for line in free if wanted.intersection(line.stores) and identity_of(code, line) not in found]
            if not new:
                return found
            found |= {identity_of(code, line) for line in new}
            wanted |= {name for line in new for name in line.loads} - CARRIERS

    @staticmethod
    def _results(code: CodeFacts, targets: list[CodeLine]) -> set[str]:
        """Names that hold something computed from what the targets returned."""
        results = {name for line in targets for name in line.stores} - CARRIERS
        last = max(line.line for line in targets)
        for line in sorted(code.lines, key=lambda line: line.line):
            if line.line > last and results.intersection(line.loads):
                results |= set(line.stores) - CARRIERS
        return results

    def _enter_called_functions(self) -> None:
        """A traced function that only preparing lines call prepares with all its lines (get_batch)."""
        for _ in self._codes:
            before = len(self.prepares)
            for code in self._codes:
                if self._is_called_to_prepare(code):
                    own = {identity_of(code, line) for line in code.lines}
                    self.prepares |= {each for each in own if each not in self._known}
            if len(self.prepares) == before:
                return

    def _is_called_to_prepare(self, code: CodeFacts) -> bool:
        name = code.function.rpartition(".")[2]
        callers = [
            identity_of(other, line)
            for other in self._codes
            if other is not code
            for line in other.lines
            if name in line.loads and identity_of(other, line) not in self._evaluating
        ]
        return bool(callers) and all(each in self.prepares for each in callers)


MOST = 0.9
"""Where preparing lines take at least this share of a gap in the lined steps, they take that share in others too."""


@dataclass(frozen=True, slots=True, eq=False)
class StepGaps:
    """What lies between the instrumented parts of the steps: step's index, (kind before, kind after) as one number,
    begin and end; segments are not taken out yet."""

    step: Int64
    neighbours: Int64
    begin: Int64
    end: Int64


def estimate(gaps: StepGaps, segments: Intervals, lines: LineRoles, lined: Int64, count: int) -> tuple[Int64, Int64]:
    """(input, transfer) ns of `count` steps' gaps: exact in the steps with line records, estimated in the others.

    An estimate is the median of what the lined steps spent in gaps of the same neighbours, at most the gap itself.
    """
    gap = (gaps.end - gaps.begin) - measure(segments, gaps.begin, gaps.end)
    result = np.zeros((2, count), np.int64)
    is_lined = np.isin(gaps.step, lined)
    free = gap.copy()
    for row, role in enumerate((LineRole.INPUT, LineRole.TRANSFER)):
        instants = lines.of(role)
        exact = measure(instants, gaps.begin, gaps.end) if len(instants) else np.zeros(len(gap), np.int64)
        exact = np.minimum(exact, free)
        guess = _guess(gaps, gap, exact, is_lined)
        value = np.where(is_lined, exact, np.minimum(guess, free))
        free -= value
        np.add.at(result[row], gaps.step, value)
    return result[0], result[1]


def _guess(gaps: StepGaps, gap: Int64, exact: Int64, lined: Bool) -> Int64:
    guess = np.zeros(len(gap), np.int64)
    for neighbours in np.unique(gaps.neighbours[lined & (exact > 0)]):
        same = gaps.neighbours == neighbours
        known = same & lined
        share = exact[known].sum() / max(1, gap[known].sum())
        guess[same] = gap[same] * share if share >= MOST else np.median(exact[known])
    return guess


def find_gaps(top: RecordTable, begin: Int64, end: Int64) -> StepGaps:
    """Gaps between the top intervals, cut at the boundaries of the steps [begin, end)."""
    if not len(begin):
        nothing = np.zeros(0, np.int64)
        return StepGaps(nothing, nothing, nothing, nothing)
    starts = np.concatenate((begin[:1], top.end))
    stops = np.concatenate((top.begin, end[-1:]))
    kinds = np.concatenate(([0], top.kind.astype(np.int64), [0]))
    neighbours = kinds[:-1] * 256 + kinds[1:]
    step = np.searchsorted(end, starts, side="right")
    inside = (stops > starts) & (step < len(end)) & (starts >= begin[0])
    step, starts, stops, neighbours = step[inside], starts[inside], stops[inside], neighbours[inside]
    return StepGaps(step, neighbours, starts, np.minimum(stops, end[step]))


class LineRole(Enum):
    """What a line is for. Values: `findings.case.LineUse.role`."""

    INPUT = "input"
    TRANSFER = "transfer"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    PYTHON = "python"


SLIVER = 0.01
"""A line that spends less than this share of its time in an interval only touches it: clocks of two records differ."""
TRANSFER_CALLS = ("to", "cuda", "copy_")
TRANSFER_TEXT = re.compile(r"\.(?:to|cuda|copy_)\(")


@dataclass(frozen=True, slots=True, eq=False)
class LineTimes:
    """Exclusive stretches of lines: identity, begin, end (columns). hit_identity, hit_begin: executions."""

    identity: Int64
    begin: Int64
    end: Int64
    hit_identity: Int64
    hit_begin: Int64

    def of(self, identities: Iterable[int]) -> Intervals:
        """The instants of some lines."""
        mask = np.isin(self.identity, list(identities))
        return union(self.begin[mask], self.end[mask])


@dataclass(frozen=True, slots=True)
class LineRoles:
    """Roles by LINE identity, and the lines' times."""

    times: LineTimes
    roles: dict[int, LineRole] = field(default_factory=dict)

    def of(self, *wanted: LineRole) -> Intervals:
        """The instants of lines with one of these roles."""
        return self.times.of(each for each, role in self.roles.items() if role in wanted)


def find_lines(process: Process, lane: RecordTable, activity: Activity, work: TrainingWork) -> LineRoles:
    """Times and roles of the lines that were traced."""
    records = lane.of(Kind.LINE)
    made = call_tree(records.begin, records.end)
    spans = exclusive_spans(made)
    owner = records.identity[made.rows[spans.owner]]
    times = LineTimes(owner, spans.begin, spans.end, records.identity, records.begin)
    seen = _roles_by_clock(times, activity, work)
    forwards = {each for each, role in seen.items() if role is LineRole.FORWARD}
    evaluating = {each for each, role in seen.items() if role is LineRole.EVALUATION}
    preparing = find_preparing(process.codes, forwards, evaluating, set(seen))
    on_device = process.facts.device != "cpu"
    moved = _moving_lines(process.sites) if on_device else frozenset()
    roles = dict.fromkeys(np.unique(times.identity).tolist(), LineRole.PYTHON) | seen
    for code, line in _lines_of(process.codes, preparing):
        moves = on_device and ((code.file, line.line) in moved or bool(TRANSFER_TEXT.search(line.text)))
        roles[identity_of(code, line)] = LineRole.TRANSFER if moves else LineRole.INPUT
    return LineRoles(times, roles)


def _lines_of(codes: tuple[CodeFacts, ...], identities: set[int]) -> list[tuple[CodeFacts, CodeLine]]:
    return [(code, line) for code in codes for line in code.lines if identity_of(code, line) in identities]


def _moving_lines(sites: tuple[SiteFacts, ...]) -> frozenset[tuple[str, int]]:
    return frozenset((site.site.file, site.site.line) for site in sites if site.name in TRANSFER_CALLS)


def _roles_by_clock(times: LineTimes, activity: Activity, work: TrainingWork) -> dict[int, LineRole]:
    """The role of each line that holds more than a sliver of something instrumented: the largest such part."""
    parts = {
        LineRole.EVALUATION: activity.evaluation,
        LineRole.INPUT: work.loader,
        LineRole.FORWARD: work.forward,
        LineRole.BACKWARD: work.backward,
        LineRole.OPTIMIZER: work.updates,
    }
    identities, number = np.unique(times.identity, return_inverse=True)
    whole = np.bincount(number, weights=times.end - times.begin, minlength=len(identities))
    held = np.zeros((len(parts), len(identities)))
    for row, instants in enumerate(parts.values()):
        inside = measure(instants, times.begin, times.end)
        held[row] = np.bincount(number, weights=inside, minlength=len(identities))
    if not len(identities):
        return {}
    largest = held.argmax(axis=0)
    names = list(parts)
    return {
        int(each): names[largest[column]]
        for column, each in enumerate(identities)
        if held[largest[column], column] > SLIVER * whole[column]
    }
