"""Throughput against batch size: points, the plateau, and where memory ran out. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steptime.quantities import Estimate
from steptime.trials.judge import MIN_GAIN
from steptime.trials.lab import batch_of
from steptime.trials.trial import Judgement, Verdict

TOGETHER = 2
"""Sizes that are tried at a time: behind a plateau, one at most was needless."""
MOST_DOUBLINGS = 12
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "MemoryError", "by signal 9")
"""What PyTorch, Python and the kernel (which ends a process with SIGKILL) say."""


@dataclass(frozen=True, slots=True)
class Point:
    """A batch size. rate: items per second, unit "1"; None where it was not reached, and why: "" where no time was left
    for it."""

    size: int
    rate: Estimate | None
    failure: str = ""

    @property
    def out_of_memory(self) -> bool:
        """Whether that is why."""
        return any(words in self.failure for words in OUT_OF_MEMORY)


def points_of(judgements: Sequence[Judgement], step_ns: float, own_size: int | None) -> tuple[Point, ...]:
    """By size, the job's own among them. step_ns: a step of the job as it is, which each speed is relative to."""
    points = {}
    if own_size:
        rate = own_size / step_ns * 1e9
        points[own_size] = Point(own_size, Estimate(rate, rate, rate, 1, "1"))
    for judgement in judgements:
        size, speed = batch_of(judgement.arm), judgement.speed
        if size is None:
            continue
        if speed is not None:
            rate = size / step_ns * 1e9
            points[size] = Point(
                size, Estimate(rate * speed.value, rate * speed.low, rate * speed.high, speed.samples, "1")
            )
        else:
            lost = judgement.verdict in (Verdict.FAILED, Verdict.NOT_EXERCISED)
            points[size] = Point(size, None, judgement.sentence if lost else "")
    return tuple(points[size] for size in sorted(points))


def plateau(points: Sequence[Point], min_gain: float = MIN_GAIN) -> int | None:
    """The size from which on larger batches bring less than `min_gain` more items a second; None where the largest one
    still does."""
    known = [(point.size, point.rate.value) for point in points if point.rate is not None]
    for number, (size, rate) in enumerate(known[:-1]):
        if all(later < rate * (1 + min_gain) for _, later in known[number + 1 :]):
            return size
    return None


def over(points: Sequence[Point], go_on: bool) -> bool:
    """Whether larger sizes are not tried: what is smaller has failed or could not be timed, or, where they go on, the
    plateau is reached."""
    return any(point.rate is None for point in points) or (go_on and plateau(points) is not None)


def groups(sizes: Sequence[int], go_on: bool) -> Iterator[tuple[int, ...]]:
    """Sizes to try together, ascending; doubled from the largest on where these are not all."""
    wanted = sorted(set(sizes))
    if go_on:
        wanted += [wanted[-1] << number for number in range(1, MOST_DOUBLINGS + 1)]
    for begin in range(0, len(wanted), TOGETHER):
        yield tuple(wanted[begin : begin + TOGETHER])
