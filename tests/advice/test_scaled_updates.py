"""Updates that a gradient scaler leaves out are counted from the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from journals import MS, JournalBuilder

from steptime.advice.step_evidence import CALIBRATION, scaled_updates
from steptime.journal import Kind


def scaled(skipped: set[int], steps: int) -> JournalBuilder:
    """A job whose scaler leaves out some steps."""
    job = JournalBuilder()
    for number in range(steps):
        job.forward(MS).backward(MS)
        with job.within(Kind.SCALER_STEP, 1):
            job.wait(MS)
            if number not in skipped:
                job.step(MS)
    return job


@pytest.mark.parametrize(
    ("skipped", "counted"),
    [(set(), 0), ({0, 1, 2}, 0), ({0, CALIBRATION - 1, CALIBRATION, 40}, 2), (set(range(60)), 60 - CALIBRATION)],
)
def test_skipped_updates_behind_the_first_ones_are_counted(skipped: set[int], counted: int, tmp_path: Path) -> None:
    process = scaled(skipped, 60).process(tmp_path)
    assert scaled_updates(process.intervals) == (60 - CALIBRATION, counted)


def test_a_job_without_a_scaler_has_none(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(40):
        job.forward(MS).backward(MS).step(MS)
    assert scaled_updates(job.process(tmp_path).intervals) == (0, 0)
