"""Boundaries of the steps, and the number of warm-up steps.

A step ends with the last update of a cycle: the end of the burst of updates before an optimizer that has already
stepped in this cycle steps again. So several optimizers, accumulation, closures and skipped updates (the scaler's step
counts) all make one step. Without optimizers per step ends with a backward, the first one after the parameters have
changed, without backwards with a forward.

The first step always is warm-up. Later steps are warm-up if they compiled, or if excluding them makes the mean of the
others more certain. A slow start of more than a quarter of the run is no warm-up, but how the job runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.timeline import Mode, RecordTable
from steptime.arrays import Bool, Float64, Int64, unique
from steptime.journal import Flag, Kind
from steptime.quantities import TO_DEVIATION

UPDATES = (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Ends of the steps, ns, in time order. Each step starts at the end of the one before, the first at `start`."""

    mode: Mode
    start: int
    ends: Int64


def find_boundaries(records: RecordTable, untimed: RecordTable, stamps: Int64) -> Boundaries:
    """Boundaries of the training thread's steps. untimed: windows in which the always-on timers are off or thinned out;
    stamps: boundaries that the probe recorded in these windows, ns."""
    updates, backwards = records.of(*UPDATES).outermost(), full_backwards(records)
    if len(updates):
        mode, ends = Mode.OPTIMIZER, _cycle_ends(updates, _reaches(updates, backwards), untimed)
    elif len(backwards):
        mode, ends = Mode.BACKWARD, _after_changes(backwards).end
    else:
        mode, ends = Mode.FORWARD, _forward_ends(records)
    ends = unique(ends if mode is Mode.FORWARD else np.concatenate((ends, stamps)))
    kinds = (Kind.LOADER_START, Kind.LOADER_NEXT, Kind.FORWARD, Kind.BACKWARD, *UPDATES)
    signs = records.of(*kinds).start  # of training: the first is the first step's start, where no boundary is before it
    start = min(ends[0], *signs[:1]) if len(ends) else 0
    return Boundaries(mode, int(start), ends)


def full_backwards(records: RecordTable) -> RecordTable:
    """Outermost full backward passes; without any, calls of torch.autograd.grad."""
    backwards = records.of(Kind.BACKWARD).outermost()
    full = backwards.where(~backwards.flagged(Flag.PARTIAL))
    return full if len(full) else backwards


def _after_changes(backwards: RecordTable) -> RecordTable:
    """The first backward after each change of the parameters, where the probe has looked at these: others belong to the
    step before."""
    same = backwards.flagged(Flag.UNCHANGED)
    first = backwards.where(~same & (np.cumsum(same) > 0))
    return first if len(first) > 1 else backwards


def _reaches(updates: RecordTable, backwards: RecordTable) -> Int64:
    """End of each update, ns; for an update inside a backward (fused by hooks), the end of that backward."""
    if not len(backwards):
        return updates.end
    found = np.searchsorted(backwards.start, updates.start, side="right") - 1
    around = backwards.end[np.maximum(found, 0)]
    return np.where((found >= 0) & (around >= updates.end), around, updates.end)


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Updates of one step: the optimizers in their order, and the end of each update, ns. whole: True if an update of
    the next cycle ended it, False if the end of the run or an untimed window did."""

    optimizers: tuple[int, ...]
    ends: tuple[int, ...]
    whole: bool

    @property
    def members(self) -> frozenset[int]:
        """The optimizers without their order."""
        return frozenset(self.optimizers)


def _cycle_ends(updates: RecordTable, reaches: Int64, untimed: RecordTable) -> Int64:
    """Ends of the steps by the module's rule. A new cycle starts after each untimed window, whose updates are
    unknown.

    The last cycle of a run may be torn (the job was ended between two optimizers): it counts if it updated the same
    optimizers as some whole cycle.
    """
    cycles = _with_next_phase(_handed_over(_cycles(updates, reaches, untimed)))
    known = {cycle.members for cycle in cycles if cycle.whole}
    ends = [cycle.ends[-1] for cycle in cycles if cycle.whole or not known or cycle.members in known]
    return np.array(ends, np.int64)


def _cycles(updates: RecordTable, reaches: Int64, untimed: RecordTable) -> list[_Cycle]:
    turns = np.searchsorted(untimed.start, updates.start).tolist()
    cycles: list[_Cycle] = []
    seen: dict[int, int] = {}
    turn = -1
    for each, reach, number in zip(updates.identity.tolist(), reaches.tolist(), turns, strict=True):
        if seen and (number != turn or each in seen):
            cycles.append(_Cycle(tuple(seen), tuple(seen.values()), number == turn))
            seen = {}
        seen[each], turn = reach, number
    return [*cycles, _Cycle(tuple(seen), tuple(seen.values()), False)]


def _handed_over(cycles: list[_Cycle]) -> list[_Cycle]:
    """Splits a cycle with the last step of some optimizers and the first of others, if the former stepped alone before
    it and the latter step alone after it (layers trained one after the other)."""
    found = cycles[:1]
    for before, cycle, after in zip(cycles, cycles[1:], cycles[2:], strict=False):
        cut = len(before.optimizers)
        parts = frozenset(cycle.optimizers[:cut]), frozenset(cycle.optimizers[cut:])
        if before.whole and cycle.whole and parts == (before.members, after.members):
            found.append(_Cycle(cycle.optimizers[:cut], cycle.ends[:cut], True))
            found.append(_Cycle(cycle.optimizers[cut:], cycle.ends[cut:], True))
        else:
            found.append(cycle)
    return found + cycles[1:][-1:]


def _with_next_phase(cycles: list[_Cycle]) -> list[_Cycle]:
    """Cuts the last cycle if other optimizers step after a whole one: a second optimizer continues alone, as L-BFGS
    with its one long step after Adam. A cycle that was torn has only optimizers that some whole one has."""
    *before, last = cycles
    known = frozenset().union(*(cycle.members for cycle in before if cycle.whole))
    cut = next((at for at, each in enumerate(last.optimizers) if each not in known), 0)
    if not cut or frozenset(last.optimizers[:cut]) not in {cycle.members for cycle in before if cycle.whole}:
        return cycles
    rest = _Cycle(last.optimizers[cut:], last.ends[cut:], True)
    return [*before, _Cycle(last.optimizers[:cut], last.ends[:cut], True), rest]


def _forward_ends(records: RecordTable) -> Int64:
    """Ends of inference steps, ns: one per batch of a loader if there is one, else one per call of the same top
    module."""
    forwards = records.of(Kind.FORWARD).outermost()
    fetched = records.of(Kind.LOADER_NEXT)
    if 2 <= len(fetched) <= len(forwards):
        before = np.searchsorted(forwards.start, np.append(fetched.start[1:], np.iinfo(np.int64).max)) - 1
        return np.asarray(forwards.end[before[before >= 0]])
    nothing = forwards.where(np.zeros(len(forwards), np.bool_))
    return _cycle_ends(forwards, forwards.end, nothing) if len(forwards) else forwards.end


LEAST = 3
"""Undisturbed steps in the later half that are needed for a comparison with the first steps."""
LONGEST, SHORT = 4, 3
"""Longest warm-up: one step in LONGEST, or SHORT steps if that is more. Hoad, Robinson and Davies (below) take a
truncation beyond half of the series as a sign that it never settled. A run that slows down for another reason looks the
same."""
TOLERANCE = 0.02
"""Fraction: a smaller difference is ignored, however quiet the machine."""
DEVIATIONS = 3.0
"""Standard deviations from the usual step beyond which a step counts as no further away: one stall of a second must not
outweigh a hundred steps."""
BURST = 2
"""Most steps between two compilations of one start: forward, backward and the second shape."""


def find_warm_up(work: Int64, usable: Bool, compiled: Bool) -> tuple[int, str]:
    """(number of steps to leave out as warm-up, reason). work: time of each step, ns, without its wait for input, which
    has its own start-up and is often what the user looks for. usable: mask of undisturbed steps. compiled: mask of
    steps with a compilation."""
    count = len(work)
    if count < 2:
        return count, "a single step is all warm-up" if count else "no step was found"
    most = min(max(SHORT, count // LONGEST), count // 2)
    known = _first_burst(compiled, most)
    slow = _slow_steps(work, usable, most)
    if slow > max(1, known):
        return slow, f"the first {slow} steps were slower than the rest"
    if known > 1:
        return known, f"in the first {known} steps code was compiled"
    return 1, "the first step always counts as warm-up"


def _first_burst(compiled: Bool, most: int) -> int:
    """Number of steps up to the last one of the first burst of compilations; 0 for none."""
    found = np.flatnonzero(compiled[:most])
    if not len(found):
        return 0
    apart = np.flatnonzero(np.diff(found) > BURST)
    return int(found[apart[0] if len(apart) else -1]) + 1


def _slow_steps(work: Int64, usable: Bool, most: int) -> int:
    """Number of steps at the start that are slower than the others; 1 if only the first is to be left out."""
    half = len(work) // 2
    later = work[half:][usable[half:]]
    if len(later) < LEAST:
        return 1
    usual = float(np.median(later))
    noise = TO_DEVIATION * float(np.median(np.abs(later - usual)))
    reach = max(DEVIATIONS * noise, TOLERANCE * usual)
    first = _truncation(np.clip(work, usual - reach, usual + reach), usable, most)
    return first if _is_a_start(work[1:first][usable[1:first]], work[first:][usable[first:]]) else 1


def _truncation(values: Float64, usable: Bool, most: int) -> int:
    """Position at which to cut a series, from 1 to `most`, so that the standard error of the mean of the rest is least.

    This is MSER without batches, since warm-ups are often shorter than a batch (White, An effective truncation
    heuristic for bias reduction in simulation output, Simulation 69, 1997; compared with others by Hoad, Robinson and
    Davies, Automating warm-up length estimation, Journal of the Operational Research Society 61, 2010). An unusable
    step counts as if it had the later half's variance."""
    count = len(values)
    known = np.where(usable, values - values[usable].mean(), 0.0)
    left = np.cumsum(usable[::-1])[::-1]
    squares = np.cumsum((known * known)[::-1])[::-1] - np.cumsum(known[::-1])[::-1] ** 2 / np.maximum(1, left)
    half = count // 2
    typical = float(values[half:][usable[half:]].var())
    length = count - np.arange(count)
    error = (squares + (length - left) * typical) / length**2
    return int(np.argmin(error[1 : most + 1])) + 1


def _is_a_start(head: Int64, tail: Int64) -> bool:
    """True if the head is slower than the tail and most of that is over where the head ends. A drift goes on, and so
    does what slows the job for another reason."""
    if not len(head):
        return False
    usual = float(np.median(tail))
    fall = float(np.mean(head)) - usual
    after = float(np.median(tail[: max(3, len(head) // 2)])) - usual
    return fall > TOLERANCE * usual and fall > 2 * after
