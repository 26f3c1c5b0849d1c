"""A gain of the step as a gain of the run, of a job that does something else again and again between its steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptime.advice.run_uses import SegmentUse
from steptime.quantities import Estimate, format_share

LEAST_OTHER = 0.1
"""Fraction of the run: with less between the steps, a gain of the step is nearly one of the run."""
NAMES = {"rollout": "rollouts", "evaluation": "evaluations", "checkpoint": "checkpoints"}
"""Kinds of segments that come back as long as a job runs, in words. Compilations and starts of a loader are the steps'
own."""
UNCHANGED = Estimate(1.0, 1.0, 1.0, 1, "1")


@dataclass(frozen=True, slots=True)
class OtherWork:
    """Recurring work between the steps. share: its fraction of the run, 0 if below LEAST_OTHER; kind: kind of the
    segments with most of it, "" for none; every: median number of steps between two of these segments."""

    share: float = 0.0
    kind: str = ""
    every: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"other work is a part of the run: {self.share}")

    @property
    def name(self) -> str:
        """Name of the work: "rollouts"."""
        return NAMES.get(self.kind, "other work")

    @property
    def part(self) -> str:
        """Share of the steps, such as "Steps are 14 % of the run"; "" if there is no other work."""
        return f"Steps are {format_share(1 - self.share)} of the run" if self.share else ""

    @property
    def sentence(self) -> str:
        """Sentence on the work between the steps and its effect on the gain of the run; "" without such work."""
        often = f"every {self.every:.0f} steps" if self.every >= 1.5 else "every step"
        assumed = f"A gain of the run assumes {self.name} as often and, unless timed otherwise, as long as before"
        return f"{self.part}, as recorded: {self.name} come {often}. {assumed}." if self.share else ""

    def of_run(self, speed: Estimate, other: Estimate = UNCHANGED) -> Estimate:
        """Speed-up of the whole run from that of the step and, by `other`, of the other work; all in unit "1"."""

        def whole(step: float, rest: float) -> float:
            return 1 / ((1 - self.share) / step + self.share / rest) if step > 0 and rest > 0 else 0.0

        value, low, high = (whole(getattr(speed, end), getattr(other, end)) for end in ("value", "low", "high"))
        return Estimate(value, low, high, speed.samples, "1")


NO_OTHER_WORK = OtherWork()


def other_work(segments: Iterable[SegmentUse], step_ns: float) -> OtherWork:
    """Recurring work between a recording's steps; what occurred once may never recur. step_ns: mean time per step, ns.
    A segment's fraction of the run is the smaller of two: as recorded, and by its distance in steps, because a short
    recording may have two evaluations and the steps of one."""
    found = []
    for use in segments:
        if use.kind in NAMES and use.every > 0:
            length = use.duration / use.count
            found.append((min(use.share, length / max(1.0, length + use.every * step_ns)), use))
    share = sum(part for part, _ in found)
    if not LEAST_OTHER <= share < 1:
        return NO_OTHER_WORK
    _, most = max(found, key=lambda each: each[0])
    return OtherWork(share, most.kind, most.every)
