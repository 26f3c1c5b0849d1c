"""Cheats are caught, honest changes pass: all of `benchmarks/red_team*_changes.txt`, a few of it in the quick tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.red_team import JOBS, ChangeOfJob, Judge, changes

pytest.importorskip("torch")

QUICK = {
    "shorter sequences": "in another direction",
    "frozen after ten steps": "Without a gradient in step 16",
    "patched clock before torch": "It replaces time.perf_counter_ns",
    "patched Optimizer.step": "It replaces torch.optim.AdamW.step",
    "the same batch from step 12 on": "It repeats the same batch",
    "dropped last batches": "An epoch of Images has",
    "skipped evaluation": "It evaluates none of the 128 samples",
    "fused optimizer": "",
    "the average is not updated": "an average of the weights",
    "no weight decay, next to a fused optimizer": "its optimizer has weight_decay 0.0",
    "no second term of the loss": "steps in float64, its parameters differ",
    "evaluation mode from step 20 on": "in training mode",
    "a mask of another shape": "",
}
"""And words of the reason."""


@pytest.fixture(scope="module")
def judge_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Judge]:
    return cache(lambda job: Judge(tmp_path_factory.mktemp("red-team") / job, job))


@pytest.mark.parametrize(
    ("job", "change"),
    [
        pytest.param(job, each, id=each.name, marks=() if each.name in QUICK else pytest.mark.slow)
        for job in JOBS
        for each in changes(job)
    ],
)
def test_cheats_are_caught_and_honest_changes_pass(
    judge_of: Callable[[str], Judge], job: str, change: ChangeOfJob
) -> None:
    outcome = judge_of(job).judge(change)
    assert outcome.right, (outcome.verdict, outcome.sentence)
    assert QUICK.get(change.name, "") in outcome.sentence


def test_all_of_the_quick_ones_are_there() -> None:
    names = {each.name for job in JOBS for each in changes(job)}
    assert QUICK.keys() <= names
