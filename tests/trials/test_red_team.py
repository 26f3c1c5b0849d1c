"""Cheats are caught, honest changes pass: all of `benchmarks/red_team_changes.txt`, a few of it in the quick tests."""

from __future__ import annotations

import pytest

from benchmarks.red_team import ChangeOfJob, Judge, changes

pytest.importorskip("torch")

QUICK = {
    "shorter sequences": "another way",
    "frozen after ten steps": "Without a gradient in step 16",
    "patched clock before torch": "It replaces time.perf_counter_ns",
    "patched Optimizer.step": "It replaces torch.optim.AdamW.step",
    "the same batch from step 12 on": "The same batch comes",
    "dropped last batches": "A pass over Images takes",
    "skipped evaluation": "It evaluates none of the 128 samples",
    "fused optimiser": "",
}
"""And words of the reason."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("red-team"))


@pytest.mark.parametrize(
    "change",
    [pytest.param(each, id=each.name, marks=() if each.name in QUICK else pytest.mark.slow) for each in changes()],
)
def test_cheats_are_caught_and_honest_changes_pass(judge: Judge, change: ChangeOfJob) -> None:
    outcome = judge.judge(change)
    assert outcome.right, (outcome.verdict, outcome.sentence)
    assert QUICK.get(change.name, "") in outcome.sentence


def test_all_of_the_quick_ones_are_there() -> None:
    names = {each.name for each in changes()}
    assert QUICK.keys() <= names
