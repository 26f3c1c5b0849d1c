"""Steps that compute the same as the one before, and steps that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.advice.models import changing_work
from steptime.intervals import union
from steptime.trace.reader import read

STEP = 1_000_000
"""Nanoseconds; its forward is the first half."""


def operator(name: str, start: int, rows: int) -> dict[str, Any]:
    """start: microseconds."""
    arguments = {"Input Dims": [[rows, 8]], "Input type": ["float"]}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 5, "args": arguments}


def changing(path: Path, steps: list[list[dict[str, Any]]]) -> bool | None:
    path.write_text(json.dumps({"traceEvents": [event for step in steps for event in step]}))
    trace = read(path)
    start = np.arange(len(steps)) * STEP
    return changing_work(trace, np.stack((start, start + STEP), axis=1), union(start, start + STEP // 2))


def forward(step: int, calls: int = 20, rows: int = 4) -> list[dict[str, Any]]:
    return [operator("aten::mul", 1000 * step + 10 * call, rows) for call in range(calls)]


def test_steps_of_one_shape_are_the_same_work(tmp_path: Path) -> None:
    assert changing(tmp_path / "t.json", [forward(step) for step in range(5)]) is False


def test_a_metric_now_and_then_is_no_other_work(tmp_path: Path) -> None:
    steps = [forward(step) + [operator("aten::argmax", 1000 * step + 400, 4)] * (step % 2) for step in range(5)]
    assert changing(tmp_path / "t.json", steps) is False


def test_other_lengths_are_other_work(tmp_path: Path) -> None:
    assert changing(tmp_path / "t.json", [forward(step, rows=4 + step) for step in range(5)]) is True


def test_a_loop_over_the_length_is_other_work(tmp_path: Path) -> None:
    assert changing(tmp_path / "t.json", [forward(step, calls=10 + 5 * step) for step in range(5)]) is True


def test_a_last_batch_that_is_smaller_does_not_make_a_job_of_changing_lengths(tmp_path: Path) -> None:
    assert changing(tmp_path / "t.json", [forward(step, rows=2 if step == 2 else 4) for step in range(6)]) is False


def test_what_the_loader_does_is_not_asked(tmp_path: Path) -> None:
    steps = [[*forward(step), *forward_in_second_half(step)] for step in range(5)]
    assert changing(tmp_path / "t.json", steps) is False


def forward_in_second_half(step: int) -> list[dict[str, Any]]:
    return [operator("aten::stack", 1000 * step + 500 + 10 * call, step) for call in range(20)]


@pytest.mark.parametrize("steps", [0, 1])
def test_with_nothing_to_compare_nobody_knows(tmp_path: Path, steps: int) -> None:
    assert changing(tmp_path / "t.json", [forward(step) for step in range(steps)]) is None
