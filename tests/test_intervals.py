"""The interval algebra agrees with plain sets of instants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from steptime import intervals
from steptime.intervals import EMPTY, Intervals

PAIRS = st.lists(st.tuples(st.integers(-20, 40), st.integers(-20, 40)), max_size=12)
Pairs = list[tuple[int, int]]


def made(pairs: Pairs) -> Intervals:
    return intervals.union([start for start, _ in pairs], [end for _, end in pairs])


def instants(pairs: Pairs) -> set[int]:
    return {instant for start, end in pairs for instant in range(start, end)}


def held(made_set: Intervals) -> set[int]:
    return instants(list(zip(made_set.start.tolist(), made_set.end.tolist(), strict=True)))


@given(PAIRS)
def test_union_holds_the_instants_of_its_intervals(pairs: Pairs) -> None:
    assert held(made(pairs)) == instants(pairs)
    assert intervals.total(made(pairs)) == len(instants(pairs))


@given(PAIRS)
def test_union_of_a_set_is_the_set(pairs: Pairs) -> None:
    once = made(pairs)
    assert intervals.union(once.start, once.end) == once


@given(PAIRS, PAIRS)
def test_intersect_subtract_and_join_are_those_of_sets(first: Pairs, second: Pairs) -> None:
    a, b = made(first), made(second)
    assert held(intervals.intersect(a, b)) == instants(first) & instants(second)
    assert held(intervals.subtract(a, b)) == instants(first) - instants(second)
    assert held(intervals.join(a, b)) == instants(first) | instants(second)


@given(PAIRS, st.integers(-25, 45), st.integers(-25, 45))
def test_clip_and_measure_agree(pairs: Pairs, start: int, end: int) -> None:
    window = set(range(start, end))
    assert held(intervals.clip(made(pairs), start, end)) == instants(pairs) & window
    assert intervals.measure(made(pairs), [start], [end]).tolist() == [len(instants(pairs) & window)]


@given(PAIRS, st.lists(st.integers(-25, 45), max_size=8))
def test_contains_is_membership(pairs: Pairs, times: list[int]) -> None:
    assert intervals.contains(made(pairs), times).tolist() == [time in instants(pairs) for time in times]


@given(PAIRS, st.lists(st.tuples(st.integers(-25, 45), st.integers(0, 3)), max_size=8))
def test_millions_of_times_are_looked_at_piece_by_piece(pairs: Pairs, times: list[tuple[int, int]]) -> None:
    whole, ends = made(pairs), [start + length for start, length in times]
    start, end = np.array([start for start, _ in times], np.int64), np.array(ends, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "PIECE", 2)
        inside, touching = intervals.contains(whole, start), intervals.touching(whole, start, end)
    assert inside.tolist() == [since in instants(pairs) for since in start.tolist()]
    members = list(zip(whole.start.tolist(), whole.end.tolist(), strict=True))
    expected = [
        any(since < last and first < until for first, last in members)
        for since, until in zip(start.tolist(), ends, strict=True)
    ]
    assert touching.tolist() == expected


@given(st.lists(PAIRS, max_size=4), st.integers(-25, 45), st.integers(0, 40))
def test_claim_partitions_the_window_by_priority(sets: list[Pairs], start: int, length: int) -> None:
    left, expected = set(range(start, start + length)), []
    for each in sets:
        expected.append(len(left & instants(each)))
        left -= instants(each)
    claimed = intervals.claim([start], [start + length], [made(each) for each in sets])
    assert claimed.tolist() == [[*expected, len(left)]]


def test_a_set_refuses_what_touches_or_is_unsorted() -> None:
    with pytest.raises(ValueError, match="touch"):
        Intervals(np.array([0, 5]), np.array([5, 9]))
    with pytest.raises(ValueError, match="below its end"):
        Intervals(np.array([0]), np.array([0]))


def test_epoch_nanoseconds_keep_their_last_digit() -> None:
    base = 1_700_000_000_000_000_000
    made_set = intervals.union([base + 1, base + 3], [base + 3, base + 1_000_000_007])
    assert intervals.total(made_set) == 1_000_000_006
    assert intervals.measure(EMPTY, [base], [base + 5]).tolist() == [0]
