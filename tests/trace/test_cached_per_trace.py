"""What is remembered about a trace is remembered once, for that trace, and no longer."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from traces import event, trace_file

from steptime.trace.cached_per_trace import cached_per_trace, forget
from steptime.trace.reader import read
from steptime.trace.table import Trace


def a_trace(folder: Path, count: int = 3) -> Trace:
    return read(trace_file(folder / "t.json", [event(number) for number in range(count)]))


def test_the_same_question_about_the_same_trace_is_answered_once(tmp_path: Path) -> None:
    asked = []

    @cached_per_trace
    def rows(trace: Trace, least: int, chosen: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        asked.append(least)
        return np.arange(least, len(trace.events)) if chosen is None else chosen + least

    first, second = a_trace(tmp_path), a_trace(tmp_path)
    assert rows(first, 1) is rows(first, 1)
    assert rows(first, least=1) is rows(first, 1)
    assert rows(first, 1, None) is rows(first, 1)
    assert asked == [1]
    rows(second, 1)
    rows(first, 2)
    assert asked == [1, 1, 2]
    one, other = np.arange(3), np.arange(3)
    assert rows(first, 5, one) is rows(first, 5, one)
    assert rows(first, 5, other) is not rows(first, 5, one)


def test_nobody_can_change_an_answer_for_the_others(tmp_path: Path) -> None:
    @cached_per_trace
    def rows(trace: Trace) -> npt.NDArray[np.int64]:
        return np.arange(len(trace.events))

    with pytest.raises(ValueError, match="read-only"):
        rows(a_trace(tmp_path))[0] = 7


def test_answers_go_with_their_trace(tmp_path: Path) -> None:
    class Answer:
        """Can be watched."""

    @cached_per_trace
    def answer(trace: Trace) -> Answer:
        return Answer()

    trace = a_trace(tmp_path)
    watched = weakref.ref(answer(trace))
    assert watched() is not None
    del trace
    gc.collect()
    assert watched() is None


def test_a_failure_is_not_remembered(tmp_path: Path) -> None:
    asked = []

    @cached_per_trace
    def fails(trace: Trace) -> int:
        asked.append(1)
        raise ValueError("no")

    trace = a_trace(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            fails(trace)
    assert len(asked) == 2


def test_what_is_forgotten_is_found_out_anew_for_that_trace_only(tmp_path: Path) -> None:
    @cached_per_trace
    def rows(trace: Trace) -> npt.NDArray[np.int64]:
        return np.arange(len(trace.events))

    one, other = a_trace(tmp_path), a_trace(tmp_path)
    first, second = rows(one), rows(other)
    forget(one, rows)
    forget(one, rows)
    assert rows(one) is not first
    assert rows(other) is second
