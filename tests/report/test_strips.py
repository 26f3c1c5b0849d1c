"""Events in rows: callers above callees, nothing overlaps, and what is too much goes from the short end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from report.step_views import events_of

from steptime.report import step_view as cutting
from steptime.report.step_view import LONGEST, Detail, Label, Strip, assemble, rows_of

Pair = tuple[int, int]


def strip(pairs: list[Pair], kind: str = "thread", *, first: bool = False, name: str = "x") -> Strip:
    times = np.array(pairs, np.int64).reshape(-1, 2)
    names = tuple(Label(f"{name}{number}", "operator") for number in range(len(pairs)))
    numbers = np.arange(len(pairs), dtype=np.int64)
    return Strip(f"{kind} {name}", kind, times[:, 0], times[:, 1], numbers, names, numbers * 0, (Detail(),), first)


def columns(pairs: list[Pair]) -> tuple[np.ndarray, np.ndarray]:
    times = np.array(sorted(pairs, key=lambda pair: (pair[0], -pair[1])), np.int64)
    return times[:, 0], times[:, 1]


def test_a_call_lies_below_its_caller_and_the_next_one_alongside_it() -> None:
    rows = rows_of(*columns([(0, 10), (1, 4), (2, 3), (5, 9), (10, 12), (10, 11)]))
    assert rows.tolist() == [0, 1, 2, 1, 0, 1]


def test_kernels_that_overlap_on_a_stream_get_rows_of_their_own() -> None:
    assert rows_of(*columns([(0, 5), (4, 8), (5, 9)])).tolist() == [0, 1, 0]


def test_what_lies_deeper_than_is_displayed_is_not_laid_out() -> None:
    deep = cutting.MOST_ROWS + 500
    rows = rows_of(*columns([(at, 10_000 - at) for at in range(deep)] + [(10_000, 10_001)]))
    assert rows.tolist() == [min(at, cutting.MOST_ROWS) for at in range(deep)] + [0]
    step_view = assemble([strip([(at, 10_000 - at) for at in range(deep)])], (0, 10_000), (0, 10_000), 0, "why")
    assert (step_view.events, step_view.left_out) == (cutting.MOST_ROWS, 500)


@given(st.lists(st.tuples(st.integers(-50, 1000), st.integers(0, 300)), min_size=1, max_size=60))
def test_what_is_laid_out_can_be_read_back(drawn: list[Pair]) -> None:
    pairs = [(start, start + length) for start, length in drawn]
    seen = events_of(assemble([strip(pairs)], (0, 1000), (10, 900), 3, "why"))
    assert sorted((each.start, each.end) for each in seen) == sorted(pairs)
    assert {each.name: (each.start, each.end) for each in seen} == {f"x{at}": pair for at, pair in enumerate(pairs)}


def test_times_count_from_what_is_displayed() -> None:
    step_view = assemble([strip([(1_700_000_000_000_000_500, 1_700_000_000_000_000_900)])],
                       (1_700_000_000_000_000_000, 1_700_000_000_000_002_000),
                       (1_700_000_000_000_000_100, 1_700_000_000_000_002_000), 7, "why")  # fmt: skip
    assert (step_view.step, step_view.length, step_view.start, step_view.end) == (7, 2000, 100, 2000)
    assert [(each.start, each.end) for each in events_of(step_view)] == [(500, 900)]


def test_of_too_many_events_the_streams_and_the_longest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MOST_EVENTS", 4)
    host = strip([(at * 100, at * 100 + at) for at in range(1, 9)])
    device = strip([(0, 1), (5, 6)], "stream", first=True, name="k")
    step_view = assemble([device, host], (0, 1000), (0, 1000), 0, "why")
    assert step_view.left_out == 6
    assert sorted(each.name for each in events_of(step_view)) == ["k0", "k1", "x6", "x7"]


def test_an_step_view_keeps_to_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MOST_BYTES", 20_000)
    crowd = strip([(at * 10, at * 10 + 5 + at % 3) for at in range(5000)])
    step_view = assemble([crowd], (0, 50_000), (0, 50_000), 0, "why")
    assert cutting._size(step_view) <= 20_000
    assert 0 < step_view.events == 5000 - step_view.left_out
    assert min(each.end - each.start for each in events_of(step_view)) == 7, "the longest"


def test_stacks_that_are_deeper_than_a_screen_end() -> None:
    deep = [(at, 1000 - at) for at in range(cutting.MOST_ROWS + 10)]
    step_view = assemble([strip(deep)], (0, 1000), (0, 1000), 0, "why")
    assert len(step_view.tracks[0].rows) == cutting.MOST_ROWS
    assert step_view.left_out == 10


def test_a_name_of_kilobytes_is_cut() -> None:
    assert len(cutting.text("x" * 10_000)) == LONGEST
    assert cutting.text("x" * LONGEST) == "x" * LONGEST
