"""Lengths of batches: steps whose time follows from what the model is given, and rows that are filled up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from traces import Event, operator

from steptime.advice.evidence import RunUse
from steptime.advice.length_evidence import length_use, padding_use
from steptime.analysis.step_context import StepContext, step_context
from steptime.quantities import SourceLine
from steptime.trace.reader import read

US = 1_000


def window(path: Path, events: list[Event], lengths: list[int]) -> StepContext:
    """Steps every 1000 us that last as many as are given."""
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0}))
    trace = read(path)
    start = int(trace.events.start.min()) + 1000 * US * np.arange(len(lengths))
    return step_context(trace, np.stack((start, start + np.array(lengths) * US), axis=1))


def linear(number: int, rows: int, length: int) -> Event:
    dims: dict[str, Any] = {"Input Dims": [[rows, length, 16], [64, 16]]}
    return operator("aten::linear", 1000 * number, 1000 * number + 50, **dims)


def test_steps_that_last_as_their_batches_are_long(tmp_path: Path) -> None:
    lengths = [100, 300, 200, 500, 400]
    made = window(
        tmp_path / "t.json",
        [linear(*each, length) for each, length in zip([(n, 8) for n in range(5)], lengths, strict=True)],
        lengths,
    )
    found = length_use([made])
    assert found is not None
    assert (found.shortest, found.longest, found.steps) == (100, 500, 5)
    assert length_use([made.only(np.array([0, 1]))]) is None, "two steps show nothing"


def test_time_that_does_not_follow_and_a_smaller_last_batch_are_no_lengths(tmp_path: Path) -> None:
    unlike = [linear(number, 8, length) for number, length in enumerate([100, 300, 200, 500, 400])]
    assert length_use([window(tmp_path / "t.json", unlike, [300, 310, 305, 290, 300])]) is None
    fewer = [linear(number, rows, 100) for number, rows in enumerate([8, 8, 8, 8, 2])]
    assert length_use([window(tmp_path / "u.json", fewer, [300, 300, 300, 300, 100])]) is None


def test_rows_that_are_filled_up_show_the_padding(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"Input Dims": [[[100, 16], [25, 16], [25, 16], [50, 16]], [], []]}
    labels: dict[str, Any] = {"Input Dims": [[[100], [25], [25], [50]], [], []]}
    events = [
        operator("aten::pad_sequence", 1000 * number + at, 1000 * number + at + 20, **dims)
        for number in range(3)
        for at, dims in ((10, rows), (50, labels))
    ]
    site = SourceLine("train.py", 45, "collate", "pad_sequence(sounds)")
    found = padding_use(
        [window(tmp_path / "t.json", events, [500] * 3)], [RunUse(site, "aten::pad_sequence", 0.5, 1.0, 1.0)]
    )
    assert found is not None
    assert (found.share, found.batches, found.site) == (0.5, 3, site)
    assert padding_use([window(tmp_path / "u.json", [linear(0, 8, 9)], [500])], []) is None
