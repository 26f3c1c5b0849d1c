"""What is between the steps of a job, and what a gain of the step is worth to its run."""

from __future__ import annotations

import pytest

from steptime.advice.run_uses import SegmentUse
from steptime.advice.whole_run import NO_OTHER_WORK, OtherWork, other_work
from steptime.quantities import Estimate

STEP = 2e6
ROLLOUTS = SegmentUse("rollout", 3, 12_000_000_000, 0.86, every=320.0)
FASTER = Estimate(1.2, 1.1, 1.3, 4, "1")


def test_what_comes_back_between_the_steps_is_a_part_of_every_run() -> None:
    found = other_work((ROLLOUTS, SegmentUse("evaluation", 3, 30_000_000, 0.002, every=300.0)), STEP)
    assert (found.kind, found.every) == ("rollout", 320.0)
    assert found.share == pytest.approx(0.862, abs=0.002)
    assert found.part == "Steps are 14 % of the run"
    assert found.of_run(FASTER).value == pytest.approx(1 / (0.862 + 0.138 / 1.2), abs=1e-3)


@pytest.mark.parametrize(
    "use",
    [
        SegmentUse("evaluation", 1, 9_000_000_000, 0.6),  # at the start, and nobody knows when next
        SegmentUse("compilation", 4, 9_000_000_000, 0.6, every=10.0),  # ends when all shapes were seen
        SegmentUse("evaluation", 1, 10_000_000, 0.01, every=500.0),
        SegmentUse("evaluation", 2, 120_000_000, 0.2, every=500.0),  # a recording that ended early: 60 ms in 1 s
    ],
)
def test_what_was_seen_once_ends_or_is_short_says_nothing_of_the_run(use: SegmentUse) -> None:
    assert other_work((use,), STEP) == NO_OTHER_WORK
    assert not other_work((use,), STEP).sentence


def test_a_gain_of_the_run_is_never_larger_than_that_of_its_parts() -> None:
    half = OtherWork(0.5, "evaluation", 100.0)
    slower = half.of_run(FASTER, Estimate(0.5, 0.4, 0.6, 3, "1"))
    assert half.of_run(FASTER).high < FASTER.high
    assert slower.high < 1
    assert half.of_run(Estimate(1.0, 0.0, float("inf"), 1, "1")).high == pytest.approx(2.0)
