"""Cheats are caught, honest changes pass: all of `benchmarks/red_team*_changes.txt`, a few of it in the quick tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from _pytest.mark.structures import ParameterSet

from benchmarks.red_team import JOBS, ChangeOfJob, Judge, changes

pytest.importorskip("torch")

QUICK = {
    "frozen after ten steps": "Without a gradient in step 16",
    "patched clock before torch": "It replaces time.perf_counter_ns",
    "the same batch from step 12 on": "It repeats the same batch",
    "fused optimizer": "",
}
"""Work that is left out or done otherwise, and an honest change, of one job; with words of the reason."""
REASONS = QUICK | {
    "the average is not updated": "an average of the weights",
    "shorter sequences": "in another direction",
    "patched Optimizer.step": "It replaces torch.optim.AdamW.step",
    "dropped last batches": "An epoch of Images has",
    "no weight decay, next to a fused optimizer": "its optimizer has weight_decay 0.0",
    "no second term of the loss": "steps in float64, its parameters differ",
    "evaluation mode from step 20 on": "in training mode",
    "skipped evaluation": "It evaluates none of the 128 samples",
}
"""The same of some others."""


@pytest.fixture(scope="module")
def judge_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Judge]:
    return cache(lambda job: Judge(tmp_path_factory.mktemp("red-team") / job, job))


def chosen() -> Iterator[ParameterSet]:
    """All changes, one by one; but the quick ones of a job together, which is run without a change only once."""
    for job in JOBS:
        quick = [each for each in changes(job) if each.name in QUICK]
        if quick:
            yield pytest.param(job, quick, id="quick ones")
        for each in changes(job):
            if each not in quick:
                yield pytest.param(job, [each], id=each.name, marks=pytest.mark.slow)


@pytest.mark.parametrize(("job", "found"), list(chosen()))
def test_cheats_are_caught_and_honest_changes_pass(
    judge_of: Callable[[str], Judge], job: str, found: list[ChangeOfJob]
) -> None:
    for change in found:
        outcome = judge_of(job).judge(change)
        assert outcome.right, (change.name, outcome.verdict, outcome.sentence)
        assert REASONS.get(change.name, "") in outcome.sentence


def test_all_with_a_reason_are_there() -> None:
    names = {each.name for job in JOBS for each in changes(job)}
    assert REASONS.keys() <= names
