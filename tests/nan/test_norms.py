"""What is kept of the gradient norm of a long run: the last steps, and some of all."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

from steptime.probe.numerics.monitor import LAST, SPREAD, LossHistory


@pytest.mark.parametrize("steps", [1, SPREAD, SPREAD + 1, 1000, 12345])
def test_a_run_of_any_length_is_kept_evenly_and_bounded(steps: int) -> None:
    history = LossHistory()
    for step in range(1, steps + 1):
        history.add(step, 0.5, float(step) if step % 2 else None)
    kept = [step for step, _, _ in history.spread]
    norms = (steps + 1) // 2
    assert min(norms, SPREAD // 2) <= len(kept) <= SPREAD
    assert len({after - before for before, after in itertools.pairwise(kept)}) <= 1
    assert kept[0] == 1
    assert steps - kept[-1] <= max(2, 2 * steps // len(kept))
    assert [step for step, _, _ in history.last] == list(range(max(1, steps - LAST + 1), steps + 1))


def test_numbers_are_as_json_has_them() -> None:
    history = LossHistory()
    history.add(1, float("nan"), float("inf"))
    assert history.spread == list(history.last) == [[1, "nan", "inf"]]
