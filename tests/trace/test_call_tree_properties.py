"""Nesting by pointer jumping agrees with a plain stack."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given, strategies as st

from steptime.trace import call_tree as module
from steptime.trace.call_tree import (
    ROOT,
    call_tree,
    depths,
    exclusive_spans,
    has_descendant,
    innermost_at,
    nearest_ancestor,
    nested,
)

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25)
Pairs = list[tuple[int, int]]


def columns(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([start for start, _ in pairs], np.int64)
    return start, start + np.array([length for _, length in pairs], np.int64)


def stacked(pairs: Pairs) -> list[tuple[int, int, int]]:
    """(parent, start, end) with a stack; a child ends with its parent."""
    made: list[tuple[int, int, int]] = []
    stack: list[int] = []
    for start, end in sorted(((b, b + length) for b, length in pairs), key=lambda pair: (pair[0], -pair[1])):
        while stack and made[stack[-1]][2] <= start and _original_end(pairs, made, stack) <= start:
            stack.pop()
        parent = stack[-1] if stack else ROOT
        made.append((parent, start, min(end, made[parent][2]) if stack else end))
        stack.append(len(made) - 1)
    return made


def _original_end(pairs: Pairs, made: list[tuple[int, int, int]], stack: list[int]) -> int:
    ordered = sorted(((b, b + length) for b, length in pairs), key=lambda pair: (pair[0], -pair[1]))
    return ordered[stack[-1]][1]


@given(PAIRS)
def test_every_instant_has_one_innermost_owner_which_covers_it(pairs: Pairs) -> None:
    made = call_tree(*columns(pairs))
    found = exclusive_spans(made)
    assert (found.start[1:] >= found.end[:-1]).all()
    covered = {t for b, e in zip(found.start.tolist(), found.end.tolist(), strict=True) for t in range(b, e)}
    assert covered == {t for b, e in zip(made.start.tolist(), made.end.tolist(), strict=True) for t in range(b, e)}
    assert (made.start[found.owner] <= found.start).all()
    assert (found.end <= made.end[found.owner]).all()
    assert (found.end - found.start).sum() == len(covered)


@given(PAIRS)
def test_children_lie_inside_their_parents(pairs: Pairs) -> None:
    made = call_tree(*columns(pairs))
    child = np.flatnonzero(made.parent != ROOT)
    assert (made.parent[child] < child).all()
    assert (made.start[made.parent[child]] <= made.start[child]).all()
    assert (made.end[child] <= np.maximum(made.end[made.parent[child]], made.start[child])).all()


@given(PAIRS)
def test_the_parent_is_the_one_a_stack_finds(pairs: Pairs) -> None:
    made = call_tree(*columns(pairs))
    assert made.parent.tolist() == [parent for parent, _, _ in stacked(pairs)]


@given(PAIRS, st.integers(1, 7))
def test_piece_by_piece_a_tree_is_the_one_a_stack_finds(pairs: Pairs, piece: int) -> None:
    with mock.patch.object(module, "PIECE", piece):
        made = call_tree(*columns(pairs))
        parent, duration = nested(made.start, columns(pairs)[1][made.rows] - made.start)
    assert list(zip(made.parent.tolist(), made.start.tolist(), made.end.tolist(), strict=True)) == stacked(pairs)
    assert (parent.tolist(), duration.tolist()) == (made.parent.tolist(), (made.end - made.start).tolist())


@given(PAIRS)
def test_a_depth_is_one_more_than_that_of_the_parent(pairs: Pairs) -> None:
    parent = call_tree(*columns(pairs)).parent
    assert depths(parent).tolist() == [0 if above == ROOT else depths(parent)[above] + 1 for above in parent.tolist()]


@given(PAIRS, st.integers(0, 2**25))
def test_descendants_and_ancestors_agree_with_walking_up(pairs: Pairs, bits: int) -> None:
    made = call_tree(*columns(pairs))
    marked = np.array([bool(bits >> i & 1) for i in range(len(made))], np.bool_)
    above: list[set[int]] = []
    for parent in made.parent.tolist():
        above.append(set() if parent == ROOT else {parent} | above[parent])
    expected = [any(marked[j] and i in above[j] for j in range(len(made))) for i in range(len(made))]
    assert has_descendant(made.parent, marked).tolist() == expected
    nearest = [max([j for j in (*above[i], i) if marked[j]], default=ROOT) for i in range(len(made))]
    assert nearest_ancestor(made.parent, marked).tolist() == nearest


@given(PAIRS, st.integers(-1, 45))
def test_innermost_is_the_deepest_interval_that_is_open(pairs: Pairs, time: int) -> None:
    made = call_tree(*columns(pairs))
    open_now = [i for i in range(len(made)) if made.start[i] <= time < made.end[i]]
    depth = [0] * len(made)
    for i, parent in enumerate(made.parent.tolist()):
        depth[i] = 0 if parent == ROOT else depth[parent] + 1
    expected = max(open_now, key=lambda i: depth[i], default=ROOT)
    assert innermost_at(made, np.array([time], np.int64)).tolist() == [expected]


def test_fifty_thousand_that_outlast_their_parents_end_with_the_first_one() -> None:
    count = 50_000  # a walk from parent to parent would take a round for each
    start = np.arange(count, dtype=np.int64)
    made = call_tree(start, count + start)
    assert made.parent.tolist() == list(range(-1, count - 1))
    assert (made.end == count).all()
