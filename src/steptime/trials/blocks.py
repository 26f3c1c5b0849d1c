"""Measurements of a process that runs several variants in blocks of steps, and verdicts from them.

A variant is a bit of a mask: 1 the first one, 2 the second, 3 both together, 0 the unchanged job. All decisions are
pure functions of the blocks, so that the live follower of a process and a later reader reach the same verdicts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steptime.arrays import Float64
from steptime.quantities import Estimate, student

LOOKS = (8, 12, 18, 27, 40, 60, 90, 135, 200, 300)
"""Numbers of block pairs after which a variant is judged. One that is undecided at the last stays undecided. Fewer than
the eleven looks that the interval allows for (`judge.LOOK`)."""
FIRST_LOOKS = 40
"""Block pairs after which an undecided variant leaves its place to compilations and combinations, and goes on when
these are decided."""
TRIMMED = 0.2
"""Fraction of the ratios trimmed at either end (Yuen, Biometrika 61, 1974): short foreign load on a shared machine
distorts single blocks, by any factor."""
DRAINING = 0.25
"""Mean number of batches by which a block may shorten its loader's queue: beyond that the variant is faster than the
loader, and its speed would not last."""


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one variant in a process that switches, from an idle device to an idle device. place: position of the
    block in the process. host_ns: time until its last step was launched, part of `wall_ns`. apart: True if the job also
    evaluated, saved or compiled in it. taken: number of batches by which it shortened its loader's queue."""

    block: int
    control: bool
    round: int
    place: int
    steps: int
    host_ns: int
    wall_ns: int
    apart: bool = False
    taken: int = 0

    @property
    def step_ns(self) -> float:
        """Mean step time, ns."""
        return self.wall_ns / self.steps


@dataclass(frozen=True, slots=True)
class SwitchedChange:
    """Outcome of one change in a variant's first steps."""

    applied: bool
    exercised: bool
    detail: str


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """First steps of a variant in a process, which include compilation and the choice of algorithms. first: the
    variant's mask. step_ns: duration of each step, ns."""

    first: int
    step_ns: tuple[int, ...]
    changes: tuple[SwitchedChange, ...]

    @property
    def preparing_ns(self) -> int:
        """Extra time of these steps over the shortest of them, ns."""
        return sum(self.step_ns) - len(self.step_ns) * min(self.step_ns)


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """Parsed record that a process wrote. begun: masks of the variants that were switched on; the last one may have
    failed. refused: reason why there are no blocks, else ""."""

    blocks: tuple[Block, ...] = ()
    first: tuple[FirstSteps, ...] = ()
    begun: tuple[int, ...] = ()
    refused: str = ""

    def first_of(self, mask: int) -> FirstSteps | None:
        """First steps of a variant; None if it never started."""
        return next((each for each in self.first if each.first == mask), None)


NO_BLOCKS = BlockRecord()


def read_blocks(path: Path) -> BlockRecord:
    """Reads the record that a process writes or has written. Skips truncated and foreign lines; without a file, returns
    NO_BLOCKS."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return NO_BLOCKS
    rows = [row for line in lines if (row := _row(line)) is not None]
    blocks = [each for each in rows if isinstance(each, Block)]
    first = [each for each in rows if isinstance(each, FirstSteps)]
    marks = [each for each in rows if isinstance(each, _Remark)]
    begun = [each.begun for each in marks if each.begun is not None]
    refused = next((each.refused for each in marks if each.refused), "")
    sound = tuple(each for each in blocks if each.steps > 0 and each.wall_ns > 0)
    return BlockRecord(sound, tuple(each for each in first if each.step_ns), tuple(begun), refused)


@dataclass(frozen=True, slots=True)
class _Remark:
    begun: int | None = None
    refused: str = ""


def _row(line: bytes) -> Block | FirstSteps | _Remark | None:
    try:
        row: Any = msgspec.json.decode(line)
        kind: Any = Block if "block" in row else FirstSteps if "first" in row else _Remark
        found: Block | FirstSteps | _Remark = msgspec.convert(row, kind)
        return found
    except (msgspec.DecodeError, TypeError, RecursionError):  # cut short
        return None


_place = attrgetter("place")


def ratios(blocks: Sequence[Block], mask: int, *, control: bool = False) -> Float64:
    """Log-ratios log(unchanged job / variant), one per block of the variant, in order. The unchanged job's time is
    interpolated, in the logarithm, between its blocks right before and after. If most blocks contain only steps, the
    ratios of the others are left out (`mixed`)."""
    found, apart = _ratios(blocks, mask, control=control)
    return np.array(found if len(found) >= len(apart) else found + apart)


def mixed(blocks: Sequence[Block], mask: int) -> bool:
    """True if the speed of a variant also includes what the job did besides its steps."""
    found, apart = _ratios(blocks, mask, control=False)
    return len(found) < len(apart)


def _ratios(blocks: Sequence[Block], mask: int, *, control: bool) -> tuple[list[float], list[float]]:
    """Log-ratios as of `ratios`: (those of steps alone, those of blocks in which the job did something else)."""
    plain = sorted((each for each in blocks if not each.block and not each.control), key=_place)
    found: list[float] = []
    apart: list[float] = []
    for each in blocks:
        if each.block != mask or each.control != control or (not mask and not control):
            continue
        number, following = bisect_left(plain, each.place, key=_place), bisect_right(plain, each.place, key=_place)
        if number == 0 or following == len(plain):
            continue
        before, after = plain[number - 1], plain[following]
        share = (each.place - before.place) / (after.place - before.place)
        base = (1 - share) * np.log(before.step_ns) + share * np.log(after.step_ns)
        clean = not (before.apart or each.apart or after.apart)
        (found if clean else apart).append(base - np.log(each.step_ns))
    return found, apart


def ratios_between(blocks: Sequence[Block], one: int, other: int) -> Float64:
    """Log-ratios log(one / other) of two variants, one per round in which both ran."""
    times: list[dict[int, float]] = [
        {each.round: each.step_ns for each in blocks if each.block == mask and not each.control}
        for mask in (one, other)
    ]
    return np.array([np.log(times[0][round_] / times[1][round_]) for round_ in times[0] if round_ in times[1]])


def speed_of(found: Float64, control: Float64) -> Estimate:
    """Speed-up that these log-ratios show, unit "1", with a 95 % interval that is valid at every look. It is the mean
    trimmed by TRIMMED at either end, and Student's interval from the winsorized variance (Yuen 1974). The variance is
    the mean of the variant's and the control's, or the variant's where that is larger. The interval is infinite for
    fewer than LOOKS[0] ratios. Raises ValueError for none."""
    if not len(found):
        raise ValueError("a speed-up needs blocks")
    cut = int(TRIMMED * len(found))
    middle = np.sort(found)[cut : len(found) - cut]
    value, count = float(middle.mean()), len(found)
    if count < LOOKS[0]:
        return Estimate(exp(value), 0.0, inf, count, "1")
    own, nothing = (
        float(_winsorized(found).var(ddof=1)),
        float(np.mean(_winsorized(control) ** 2)) if len(control) else 0.0,
    )
    variance = max(own, (own + nothing) / 2)
    error = sqrt(variance / count) / (1 - 2 * TRIMMED)
    reach = student(count - 2 * cut - 1, looks=True) * error
    return Estimate(exp(value), exp(value - reach), exp(min(700.0, value + reach)), count, "1")


def noise_between(control: Float64) -> float:
    """Factor, at least 1, by which the control may still seem faster or slower: twice its standard error about zero;
    infinite without control blocks."""
    if not len(control):
        return inf
    error = sqrt(float(np.mean(_winsorized(control) ** 2)) / len(control)) / (1 - 2 * TRIMMED)
    return exp(min(700.0, 2 * error))


def _winsorized(values: Float64) -> Float64:
    """Values, one at least, with the fraction TRIMMED at either end clipped to the nearest value inside."""
    cut = int(TRIMMED * len(values))
    ordered = np.sort(values)
    clipped: Float64 = np.clip(values, ordered[cut], ordered[len(values) - 1 - cut])
    return clipped


def outruns_loader(blocks: Sequence[Block], mask: int) -> bool:
    """True if a variant takes batches faster than its loader makes them: blocks that drain a queue prove nothing."""
    taken = [each.taken for each in blocks if each.block == mask and not each.control]
    plain = [each.taken for each in blocks if not each.block]
    return bool(taken and plain) and float(np.mean(taken)) > DRAINING + max(0.0, float(np.mean(plain)))


@dataclass(frozen=True, slots=True)
class Settled:
    """State of a variant at the look that decided it, or at the last one. won: True if faster beyond noise and the
    least gain, None while undecided."""

    won: bool | None
    speed: Estimate | None


def settled(found: Float64, control: Float64, needed: float) -> Settled:
    """State of a variant after judging its log-ratios at each of LOOKS until they decide. needed: the least speed-up
    that counts as a win."""
    last: Estimate | None = None
    for look in LOOKS:
        if len(found) < look:
            break
        last = speed_of(found[:look], control)
        if last.low > max(needed, noise_between(control)):
            return Settled(True, speed_of(found, control))
        if last.high < needed:
            return Settled(False, speed_of(found, control))
    return Settled(None, speed_of(found, control) if last is not None else None)


@dataclass(frozen=True, slots=True)
class Course:
    """Next variants of a process. going: masks of the variants to run, empty when all are decided. taken: mask of the
    variants that pay together."""

    going: tuple[int, ...]
    taken: int


COMPILING = 2.0
"""Required time for a further compilation, as a multiple of the longest one so far: the variant's blocks take time,
too."""


def course(record: BlockRecord, rivals: Sequence[int], late: int, min_gain: float, left_ns: float = inf) -> Course:
    """Decides which variants go on, and returns their masks. rivals: for each variant, the mask of those that set the
    same thing. late: mask of the compiled ones, which run after the others, one at a time, and join a combination last,
    because each combination compiles again. left_ns: remaining time, ns; a compilation starts only if COMPILING times
    the longest one so far is left. Single variants are decided first. Then each further winner is tried on top of those
    taken, and joins them if it makes them faster beyond noise. What FIRST_LOOKS did not decide goes on last."""
    longest = max((each.preparing_ns for each in record.first if each.first & late), default=0)

    def starts(mask: int) -> bool:
        return not mask & late or mask in record.begun or left_ns > COMPILING * longest

    control = ratios(record.blocks, 0, control=True)
    singles = [1 << number for number in range(len(rivals))]
    found = {mask: settled(ratios(record.blocks, mask), control, 1 + min_gain) for mask in singles}
    idle = {mask for mask in singles if (first := record.first_of(mask)) and not exercised(first)}
    drained = {mask for mask in singles if outruns_loader(record.blocks, mask)}
    undecided = [m for m in singles if found[m].won is None and _rounds(record, m) < LOOKS[-1]]
    going = [m for m in undecided if m not in idle and starts(m)]
    if new := [mask for mask in going if _rounds(record, mask) < FIRST_LOOKS]:
        return Course(tuple(mask for mask in new if not mask & late) or (new[0],), 0)
    won = [mask for mask in singles if found[mask].won and mask not in idle | drained]
    won.sort(key=lambda mask: (bool(mask & late), -_value(found[mask])))
    taken = 0
    for mask in won:
        if not taken:
            taken = mask
        elif not rivals[mask.bit_length() - 1] & taken:
            both = settled(ratios_between(record.blocks, taken, taken | mask), control, 1.0)
            if both.won is None and _rounds(record, taken | mask) < FIRST_LOOKS and starts(taken | mask):
                return Course((taken, taken | mask), taken)
            taken |= mask if both.won else 0
    return Course(tuple(mask for mask in going if not rivals[mask.bit_length() - 1] & taken), taken)


def exercised(first: FirstSteps) -> bool:
    """True if every change of a variant was applied and had an effect."""
    return all(each.applied and each.exercised for each in first.changes)


def _rounds(record: BlockRecord, mask: int) -> int:
    return sum(each.block == mask and not each.control for each in record.blocks)


def _value(found: Settled) -> float:
    return found.speed.value if found.speed is not None else 0.0
