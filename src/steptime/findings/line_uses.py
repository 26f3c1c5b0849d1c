"""The lines of the user's code: time per step, role, and what lay inside them."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Float64, Int64
from steptime.findings.case import LineUse
from steptime.findings.usual_steps import per_step
from steptime.intervals import EMPTY, Intervals, join, measure
from steptime.journal import Kind
from steptime.quantities import SourceLine
from steptime.recording.recording import Process
from steptime.timeline.flow import identity_of
from steptime.timeline.gaps import find_gaps
from steptime.timeline.layout import Layout
from steptime.timeline.lines import Role
from steptime.timeline.timeline import SegmentKind

MOST_LINES = 200
"""The longest ones; what comes after them is worth nothing together."""


def line_uses(process: Process, layout: Layout, in_operators: Intervals = EMPTY) -> tuple[LineUse, ...]:
    """The traced lines, the longest first, per step of those that were traced.

    in_operators: when the training thread was inside operators in the profiled steps. Lines are not traced there, but
    the gaps between the instrumented parts are the same: of the time that a line spends in a gap, the share that
    the gap spends in operators when profiled is not the host's.
    """
    steps, times = layout.timeline.steps, layout.lines.times
    lined = np.flatnonzero(steps.lined)
    if not len(lined) or not len(times.identity):
        return ()
    sums = _Sums(layout, lined, in_operators)
    sources = {
        identity_of(code, line): SourceLine(code.file, line.line, code.function, line.text)
        for code in process.codes
        for line in code.lines
    }
    known = [row for row, each in enumerate(sums.identities) if each in sources]
    longest = sorted(known, key=lambda row: -sums.duration[row].sum())[:MOST_LINES]
    return tuple(_use(sums, row, sources, layout.lines.roles) for row in longest if sums.duration[row].sum())


def _use(sums: _Sums, row: int, sources: dict[int, SourceLine], roles: dict[int, Role]) -> LineUse:
    each = sums.identities[row]
    return LineUse(
        source=sources[each],
        role=roles[each].value,
        duration=per_step(sums.duration[row]),
        host=per_step(sums.host[row]),
        hits=float(sums.hits[row].mean()),
        garbage=float(sums.garbage[row].mean()),
        checkpoint=float(sums.checkpoint[row].mean()),
    )


class _Sums:
    """(lines, lined steps) arrays: ns of the line's own time, of it outside of what is instrumented and in torch.save,
    executions, collections. `identities`: of the rows."""

    def __init__(self, layout: Layout, lined: Int64, in_operators: Intervals) -> None:
        times, steps = layout.lines.times, layout.timeline.steps
        self.identities: list[int] = np.unique(times.identity).tolist()
        self._rows = np.array(self.identities)
        self._begins, self._ends, self._count = steps.begin[lined], steps.end[lined], len(lined)
        pauses = _segment(layout, SegmentKind.PAUSE)
        length = times.end - times.begin - measure(pauses, times.begin, times.end)
        self.duration = self._table(times.identity, times.begin, length)
        work = layout.work
        model = join(work.loader, work.forward, work.backward, work.updates, layout.activity.evaluation, pauses)
        outside = times.end - times.begin - measure(model, times.begin, times.end)
        # Preparing a batch with operators is preparing it all the same: only lines of no other role are split.
        plain = [each for each, role in layout.lines.roles.items() if role is Role.HOST]
        busy = _busy_share(layout, in_operators, times.begin) * np.isin(times.identity, plain)
        self.host = self._table(times.identity, times.begin, np.rint(outside * (1 - busy)).astype(np.int64))
        saving = layout.lane.of(Kind.CHECKPOINT).intervals
        self.checkpoint = self._table(times.identity, times.begin, measure(saving, times.begin, times.end))
        self.hits = self._table(times.hit_identity, times.hit_begin, np.ones(len(times.hit_begin), np.int64))
        collections = layout.lane.of(Kind.GARBAGE).begin
        inside = np.searchsorted(collections, times.end) - np.searchsorted(collections, times.begin)
        self.garbage = self._table(times.identity, times.begin, inside)

    def _table(self, identity: Int64, begin: Int64, value: Int64) -> Int64:
        """Values summed by line and by the lined step that they begin in."""
        step = np.minimum(np.searchsorted(self._ends, begin, side="right"), self._count - 1)
        inside = (begin >= self._begins[step]) & (begin < self._ends[step])
        cell = np.searchsorted(self._rows, identity[inside]) * self._count + step[inside]
        summed = np.bincount(cell, weights=value[inside], minlength=len(self._rows) * self._count)
        return np.rint(summed).astype(np.int64).reshape(len(self._rows), self._count)


def _busy_share(layout: Layout, in_operators: Intervals, begin: Int64) -> Float64:
    """Of the gap that each time lies in, by the kinds of its neighbours: the share in operators; 0 where not known."""
    gaps = find_gaps(layout.work.top, layout.timeline.steps.begin, layout.timeline.steps.end)
    share = np.zeros(len(begin))
    if not len(in_operators) or not len(gaps.begin):
        return share
    seen = (gaps.begin >= in_operators.begin[0]) & (gaps.end <= in_operators.end[-1])
    seen &= layout.timeline.steps.profiled[gaps.step]
    length = gaps.end - gaps.begin - measure(_segment(layout, SegmentKind.PAUSE), gaps.begin, gaps.end)
    inside = measure(in_operators, gaps.begin, gaps.end)
    found = np.searchsorted(gaps.begin, begin, side="right") - 1
    held = (found >= 0) & (begin < gaps.end[np.maximum(found, 0)])
    kind = np.where(held, gaps.neighbours[np.maximum(found, 0)], -1)
    for each in np.unique(gaps.neighbours[seen]):
        same = seen & (gaps.neighbours == each)
        share[kind == each] = min(1.0, inside[same].sum() / max(1, length[same].sum()))
    return share


def _segment(layout: Layout, kind: SegmentKind) -> Intervals:
    held = [segment for segment in layout.timeline.segments if segment.kind is kind]
    begin = np.array([segment.begin for segment in held], np.int64)
    return Intervals(begin, np.array([segment.end for segment in held], np.int64))
