"""The norm of the gradients over the steps of a recording, from its samples."""

from __future__ import annotations

import math
from pathlib import Path

from journals import MS, JournalBuilder

from steptime.advice.models import norm_use
from steptime.advice.run_uses import NormUse
from steptime.analysis.layout import lay_out
from steptime.journal import Kind
from steptime.probe.gradients import bits


def used(norms: dict[int, float], steps: int, folder: Path) -> NormUse | None:
    """Of a job with a sample after some of its steps."""
    job = JournalBuilder()
    for number in range(steps):
        job.forward(MS).backward(MS).step(MS)
        if number in norms:
            job.record(Kind.GRADIENT_NORM, job.now, bits(norms[number])).wait(MS // 10)
    process = job.process(folder)
    return norm_use(process.intervals, lay_out(process).steps)


def test_the_first_third_is_compared_with_the_last(tmp_path: Path) -> None:
    norms = {10: 1.0, 20: 2.0, 30: 3.0, 40: 50.0, 50: 60.0, 60: 70.0, 70: 800.0, 80: 900.0, 90: 1000.0}
    assert used(norms, 100, tmp_path) == NormUse(2.0, 900.0, 11, 91, 9)


def test_norms_that_are_not_finite_at_the_end_are_counted_from_their_first(tmp_path: Path) -> None:
    norms = {10: 1.0, 20: math.inf, 30: 1.0, 40: math.inf, 50: math.inf}
    use = used(norms, 100, tmp_path)
    assert use is not None
    assert (use.lost, use.lost_since, use.samples) == (2, 41, 5)


def test_norms_that_never_were_finite_have_no_usual_value(tmp_path: Path) -> None:
    assert used({10: math.inf, 20: math.inf, 30: math.inf}, 50, tmp_path) == NormUse(0.0, 0.0, 11, 31, 3, 3, 11)


def test_a_damaged_sample_is_no_number(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(12):
        value = bits(1.0) if number < 9 else (2**31 + bits(1.0), bits(math.inf) + 1, 2**62 - 1)[number % 3]
        job.forward(MS).backward(MS).step(MS).record(Kind.GRADIENT_NORM, job.now, value).wait(MS)
    process = job.process(tmp_path)
    use = norm_use(process.intervals, lay_out(process).steps)
    assert use is not None
    assert (use.before, use.after, use.samples - use.lost) == (1.0, 1.0, 9)


def test_a_job_without_samples_has_none(tmp_path: Path) -> None:
    assert used({}, 20, tmp_path) is None
