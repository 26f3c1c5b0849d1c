"""What a trial is planned with, from the recording of the job."""

from __future__ import annotations

import pytest

from steptime.advice.run_uses import StepSummary
from steptime.quantities import Estimate
from steptime.trials.conduct import MOST
from steptime.trials.plan import warm_up_of
from steptime.trials.results import WARM_UP

MS = 1_000_000


def recorded(milliseconds: float, warm_up: int) -> StepSummary:
    duration = milliseconds * MS
    return StepSummary(Estimate(duration, duration, duration, 50), 100, 50, warm_up, "training", "cpu")


@pytest.mark.parametrize(
    ("milliseconds", "warm_up", "taken"),
    [(20, 1, WARM_UP), (20, 30, 30), (20, 400, MOST), (1000, 30, WARM_UP), (100, 60, 50), (0, 30, WARM_UP)],
    ids=["none", "a slow start", "a long one", "long steps", "as many as are timed", "no duration"],
)
def test_every_process_warms_up_as_the_recording_did(milliseconds: float, warm_up: int, taken: int) -> None:
    assert warm_up_of(recorded(milliseconds, warm_up)) == taken
