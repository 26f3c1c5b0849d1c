"""The line table: every nanosecond of the line-timed steps belongs to one line, or to none that was timed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.activity import SegmentClaims, TrainingWork, split
from steptime.analysis.lines import LineRole, LineRoles
from steptime.analysis.operators import FEWEST_BESIDE_A_STALL
from steptime.analysis.timeline import Phase, Steps
from steptime.arrays import Bool, Float64, Int64, unique

GAPS = {LineRole.INPUT: Phase.INPUT, LineRole.TRANSFER: Phase.TRANSFER}
"""Which phase a line's time outside of the loader and the model is; of other lines it is the rest."""

FAR_LONGER = 1.5
"""Times what the line-timed steps take outside of the phases: more is not the machine's noise, which timing lines, too,
works against."""


@dataclass(frozen=True, slots=True, eq=False)
class LinePieces:
    """When each line was the innermost one, cut at the boundaries of the steps. row: of the table. step: its column.
    rest: ns outside of segments, the loader and the model."""

    row: Int64
    step: Int64
    begin: Int64
    end: Int64
    rest: Int64


@dataclass(frozen=True, slots=True, eq=False)
class LineTable:
    """The line-timed steps by line. identities: (k,), those of LINE records. steps: (m,) ns, their durations. spent:
    (k, m, phases) ns; timing: (k, m) ns of it that timing the lines took. untimed: (m,) ns in no line that was timed.
    Raises ValueError where it does not add up to the steps, to the nanosecond."""

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
    """The table of the line-timed steps."""
    times, lined = lines.times, np.flatnonzero(steps.lined)
    identities = unique(times.identity)
    first = np.searchsorted(times.end, steps.begin[lined], side="right")
    last = np.searchsorted(times.begin, steps.end[lined])
    rows = np.concatenate([np.arange(0), *map(np.arange, first, last)]).astype(np.int64)
    column = np.repeat(np.arange(len(lined)), np.maximum(0, last - first))
    begin = np.maximum(times.begin[rows], steps.begin[lined][column])
    end = np.minimum(times.end[rows], steps.end[lined][column])
    row = np.searchsorted(identities, times.identity[rows])
    duration, phases = split(begin, end, claims, work)
    spent = np.zeros((len(identities), len(lined), len(Phase)), np.int64)
    np.add.at(spent, (row, column), phases)
    for number, each in enumerate(identities.tolist()):
        if (named := GAPS.get(lines.roles[each])) is not None:
            spent[number, :, named] += spent[number, :, Phase.REST]
            spent[number, :, Phase.REST] = 0
    untimed = steps.duration[lined] - np.bincount(column, duration, len(lined)).astype(np.int64)
    pieces = LinePieces(row, column, begin, end, phases[:, Phase.REST])
    timing = np.zeros((len(identities), len(lined)), np.int64)
    when = np.minimum(np.searchsorted(steps.end[lined], times.hit_begin, side="right"), len(lined) - 1)
    inside = (times.hit_begin >= steps.begin[lined][when]) & (times.hit_begin < steps.end[lined][when])
    np.add.at(timing, (np.searchsorted(identities, times.hit_identity[inside]), when[inside]), times.hit_cost[inside])
    return LineTable(identities, steps.duration[lined], spent, timing, untimed, pieces)


def usual_spent(table: LineTable, lined: Int64, usual: Int64, watched: Bool) -> tuple[Float64, Float64]:
    """(spent, scales): what the lines take in a usual step, (k, m, phases) ns, and what an ns of each line in each
    phase of the line-timed steps is in one, (k, phases). lined, usual: (m, phases) and (n, phases) ns, the phases of
    the steps. watched: (k,), lines that hold a call which the probe wraps.

    Timing lines slows a step, and a line with many calls more than one with none: what that took, as far as it is
    known, is taken out first. In these steps the probe listens to every call that it wraps, which it mostly does not:
    what they are longer by outside of the phases is taken from the lines that hold such calls. Then each phase is what
    it is in the usual steps. So all lines together take no longer than a usual step, nor those of a phase longer than
    it.

    Where the usual steps take far longer outside of the phases than those that were timed, some may do what no timed
    one did (a plot every so many steps), which is no line's that was timed: their median counts then, or what the
    machine explains, by which all phases are longer. What they take longer is that of lines of the job's own, and not
    of what stands around a call that the probe wraps.
    """
    own = table.spent * own_time(table)[:, :, None]
    spent = without_stalls(own)
    timed, left_out = spent.mean(axis=1).sum(axis=0), (table.spent - spent).mean(axis=1).sum(axis=0)
    whole = np.maximum(timed, lined.mean(axis=0) - left_out)
    longer = max(0.0, whole[Phase.REST] - usual[:, Phase.REST].mean())
    held = spent[watched, :, Phase.REST].mean(axis=1).sum()
    listening = min(longer, held)
    whole[Phase.REST] -= listening
    centre = usual.mean(axis=0)
    expected = whole[Phase.REST] * max(1.0, _slowed(centre, whole))
    if centre[Phase.REST] > FAR_LONGER * expected:
        centre[Phase.REST] = min(centre[Phase.REST], max(expected, np.median(usual[:, Phase.REST])))
    every = np.divide(centre, whole, out=np.ones(len(Phase)), where=whole > 0)
    scales = np.tile(every, (len(spent), 1))
    scales[watched, Phase.REST] *= 1 - listening / held if held > 0 else 1.0
    if every[Phase.REST] > 1 and whole[Phase.REST] > held:
        scales[watched, Phase.REST] = 1.0
        scales[~watched, Phase.REST] = (centre[Phase.REST] - held) / (whole[Phase.REST] - held)
    return spent * scales[:, None, :], scales


def _slowed(centre: Float64, whole: Float64) -> float:
    """By how many times the phases are longer than in the line-timed steps, without what is outside of them."""
    timed = np.delete(whole, Phase.REST).sum()
    return float(np.delete(centre, Phase.REST).sum() / timed) if timed > 0 else 1.0


def own_time(table: LineTable) -> Float64:
    """(k, m): of the time of each line in each step, what timing it did not take."""
    whole = table.spent.sum(axis=2)
    timing = np.minimum(table.timing, whole)
    share: Float64 = np.divide(timing, whole, out=np.zeros(whole.shape), where=whole > 0)
    return 1.0 - share


def without_stalls(values: Float64) -> Float64:
    """By line and step: the longest one of a line counts as much as its second, once is no habit."""
    if values.shape[1] <= FEWEST_BESIDE_A_STALL:
        return values
    capped: Float64 = np.minimum(values, np.sort(values, axis=1)[:, -2:-1])
    return capped
