"""Measurements of a process that runs several variants in blocks of steps, and verdicts from them.

A variant is a bit of a mask: 1 the first one, 2 the second, 3 both together, 0 the job as it is. All that decides is a
pure function of the blocks, so that who follows a process and who reads it later come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steptime.arrays import Float64
from steptime.quantities import Estimate, student

LOOKS = (8, 12, 18, 27, 40)
"""Pairs of blocks at which a variant is looked at; undecided at the last, it stays so. Fewer than the ten looks that
the interval is made for (`judge.LOOK`)."""
TRIMMED = 0.2
"""Share of the ratios at either end that does not count (Yuen, Biometrika 61, 1974): what strangers do to a shared
machine for a second hits single blocks, by any factor."""
DRAINING = 0.25
"""Batches by which a block may shorten the queue of its loader, in the mean: beyond that it is faster than the loader,
and would not stay so."""


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of a variant, from an idle device to an idle one. place: its number in the process. host_ns: until its last
    step was launched, of `wall_ns`. apart: the job did something else in it, too (evaluated, saved, compiled). taken:
    batches by which it has shortened the queue of its loader."""

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
        """ns."""
        return self.wall_ns / self.steps


@dataclass(frozen=True, slots=True)
class SwitchedChange:
    """Outcome of a change at its first steps."""

    applied: bool
    exercised: bool
    detail: str


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """The first steps of a variant in a process, ns each: they compile, and choose algorithms."""

    first: int
    step_ns: tuple[int, ...]
    changes: tuple[SwitchedChange, ...]

    @property
    def preparing_ns(self) -> int:
        """Their extra time over the shortest of them."""
        return sum(self.step_ns) - len(self.step_ns) * min(self.step_ns)


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """Record that a process has left. begun: the variants that were switched on, the last one where it may have failed.
    refused: why there are no blocks."""

    blocks: tuple[Block, ...] = ()
    first: tuple[FirstSteps, ...] = ()
    begun: tuple[int, ...] = ()
    refused: str = ""

    def first_of(self, mask: int) -> FirstSteps | None:
        """The first steps of a variant."""
        return next((each for each in self.first if each.first == mask), None)


NO_BLOCKS = BlockRecord()


def read_blocks(path: Path) -> BlockRecord:
    """Content of a file that a process writes, or has written. A line that was cut short, and what is none of ours, is
    left out."""
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


def ratios(blocks: Sequence[Block], mask: int, *, control: bool = False) -> Float64:
    """log(job as it is / variant) of each of a variant's blocks, in order: between the blocks of the job as it is right
    before and after it, in the logarithm. Those in which the job did something else are left out where others are
    there."""
    plain = [each for each in blocks if not each.block and not each.control]
    found: list[float] = []
    apart: list[float] = []
    for each in blocks:
        if each.block != mask or each.control != control or (not mask and not control):
            continue
        before = max((other for other in plain if other.place < each.place), key=_place, default=None)
        after = min((other for other in plain if other.place > each.place), key=_place, default=None)
        if before is None or after is None:
            continue
        share = (each.place - before.place) / (after.place - before.place)
        base = (1 - share) * np.log(before.step_ns) + share * np.log(after.step_ns)
        clean = not (before.apart or each.apart or after.apart)
        (found if clean else apart).append(base - np.log(each.step_ns))
    return np.array(found if len(found) >= len(apart) else found + apart)


def ratios_between(blocks: Sequence[Block], one: int, other: int) -> Float64:
    """log(one / other) of two variants, of each round in which both ran."""
    times: list[dict[int, float]] = [
        {each.round: each.step_ns for each in blocks if each.block == mask and not each.control}
        for mask in (one, other)
    ]
    return np.array([np.log(times[0][round_] / times[1][round_]) for round_ in times[0] if round_ in times[1]])


def _place(block: Block) -> int:
    return block.place


def speed_of(found: Float64, control: Float64) -> Estimate:
    """The speed-up that these ratios show, with an interval of 95 % that stays one at every look, unit "1": the mean
    without TRIMMED at either end, and Student's interval from the winsorized variance (Yuen 1974). How far blocks
    differ is taken from the variant's and the control's, or from the variant's where they differ more. Infinitely wide
    for fewer than LOOKS[0] ratios. Raises ValueError for none."""
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
    """By what factor the control may still seem faster or slower, at least 1: twice its standard error about zero;
    infinite without one."""
    if not len(control):
        return inf
    error = sqrt(float(np.mean(_winsorized(control) ** 2)) / len(control)) / (1 - 2 * TRIMMED)
    return exp(min(700.0, 2 * error))


def _winsorized(values: Float64) -> Float64:
    """With those at either end as large as the next ones."""
    cut = int(TRIMMED * len(values))
    if not len(values):
        return values
    ordered = np.sort(values)
    clipped: Float64 = np.clip(values, ordered[cut], ordered[len(values) - 1 - cut])
    return clipped


def outruns_loader(blocks: Sequence[Block], mask: int) -> bool:
    """True if a variant takes batches faster than its loader makes them: blocks that live on a queue prove nothing."""
    taken = [each.taken for each in blocks if each.block == mask and not each.control]
    plain = [each.taken for each in blocks if not each.block]
    return bool(taken and plain) and float(np.mean(taken)) > DRAINING + max(0.0, float(np.mean(plain)))


@dataclass(frozen=True, slots=True)
class Settled:
    """State of a variant at the look that settled it, or at the last that there was. won: faster beyond noise
    and the least gain; None while that is open."""

    won: bool | None
    speed: Estimate | None


def settled(found: Float64, control: Float64, needed: float) -> Settled:
    """Looks at a variant's ratios as LOOKS says, until it is settled. needed: the speed-up that is worth it."""
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
    """Progress of a process. going: what it is to run on, nothing where all is settled. taken: the variants that pay
    together, as a mask."""

    going: tuple[int, ...]
    taken: int


COMPILING = 2.0
"""Times what a compilation took so far must be left for another one: it needs its blocks, too."""


def course(record: BlockRecord, rivals: Sequence[int], late: int, min_gain: float, left_ns: float = inf) -> Course:
    """Variants that go on. rivals: for each variant, the mask of those that set the same thing; late: the compiled
    ones, which run behind the others, one after the other, and are put into a set last, as each set compiles anew.
    left_ns: the time that is left, ns; a compilation starts only where COMPILING times its duration is left. Singles
    are settled first; then each further winner is tried on top of those taken, and is left out unless it makes these
    faster beyond doubt."""
    longest = max((each.preparing_ns for each in record.first if each.first & late), default=0)

    def starts(mask: int) -> bool:
        return not mask & late or mask in record.begun or left_ns > COMPILING * longest

    control = ratios(record.blocks, 0, control=True)
    singles = [1 << number for number in range(len(rivals))]
    found = {mask: settled(ratios(record.blocks, mask), control, 1 + min_gain) for mask in singles}
    idle = {mask for mask in singles if (first := record.first_of(mask)) and not exercised(first)}
    drained = {mask for mask in singles if outruns_loader(record.blocks, mask)}
    going = [m for m in singles if m not in idle and not _over(record, m, found[m]) and starts(m)]
    if going:
        return Course(tuple(mask for mask in going if not mask & late) or (going[0],), 0)
    won = [mask for mask in singles if found[mask].won and mask not in idle | drained]
    won.sort(key=lambda mask: (bool(mask & late), -_value(found[mask])))
    taken = 0
    for mask in won:
        if not taken:
            taken = mask
        elif not rivals[mask.bit_length() - 1] & taken:
            both = settled(ratios_between(record.blocks, taken, taken | mask), control, 1.0)
            if both.won is None and _rounds(record, taken | mask) < LOOKS[-1] and starts(taken | mask):
                return Course((taken, taken | mask), taken)
            taken |= mask if both.won else 0
    return Course((), taken)


def exercised(first: FirstSteps) -> bool:
    """True if all changes of a variant acted."""
    return all(each.applied and each.exercised for each in first.changes)


def _over(record: BlockRecord, mask: int, found: Settled) -> bool:
    return found.won is not None or _rounds(record, mask) >= LOOKS[-1]


def _rounds(record: BlockRecord, mask: int) -> int:
    return sum(each.block == mask and not each.control for each in record.blocks)


def _value(found: Settled) -> float:
    return found.speed.value if found.speed is not None else 0.0
