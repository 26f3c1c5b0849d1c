"""What counts as the time of a step in a trial."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.analysis.timeline import Mode, Phase, Segment, SegmentKind, Steps, Timeline
from steptime.trials.execute import between_steps, sliced_times, step_times

MS = 1_000_000


def timeline(count: int, segments: Sequence[Segment]) -> Timeline:
    """Steps of 10 ms each, one behind the other; segments lie in them, and are no part of their duration."""
    start = np.arange(count, dtype=np.int64) * 10 * MS
    inside = np.zeros(count, np.int64)
    excluded = np.zeros(count, bool)
    for segment in segments:
        number = segment.start // (10 * MS)
        inside[number] += segment.end - segment.start
        excluded[number] |= segment.kind is not SegmentKind.LOADER_START
    off = np.zeros(count, bool)
    steps = Steps(
        start, start + 10 * MS, 10 * MS - inside, np.zeros((count, len(Phase)), np.int64), np.ones(count, np.int64),
        off, excluded, ~off, off, off,
    )  # fmt: skip
    return Timeline(Mode.OPTIMIZER, steps, tuple(segments), (), "")


def segment(kind: SegmentKind, step: int, length: int = 4 * MS) -> Segment:
    return Segment(kind, step * 10 * MS + MS, step * 10 * MS + MS + length)


def test_starts_of_workers_count_and_evaluations_do_not() -> None:
    laid_out = timeline(20, [segment(SegmentKind.LOADER_START, 12), segment(SegmentKind.EVALUATION, 15)])
    assert step_times(laid_out, 5) == [10 * MS] * 14


def test_compilations_that_go_on_are_waited_for() -> None:
    again = timeline(20, [segment(SegmentKind.COMPILATION, step) for step in range(0, 20, 4)])
    assert step_times(again, 5) == [10 * MS] * 15


def test_compilations_that_come_to_an_end_are_not() -> None:
    once = timeline(20, [segment(SegmentKind.COMPILATION, step) for step in (0, 6, 7)])
    assert step_times(once, 5) == [10 * MS] * 13


def test_a_step_with_an_evaluation_is_left_out_though_it_compiles() -> None:
    both = [segment(SegmentKind.COMPILATION, step, 2 * MS) for step in (13, 15, 17)]
    evaluated = timeline(20, [*both, Segment(SegmentKind.EVALUATION, 174 * MS, 176 * MS)])
    assert step_times(evaluated, 5) == [10 * MS] * 14


RESTS = [(49 * MS, 50 * MS), (102 * MS, 104 * MS)]
STAMPS = [48 * MS, 48 * MS, 49 * MS, 50 * MS, 101 * MS, 104 * MS, 151 * MS, 151 * MS]
FIRST = [51 * MS // 5] * 5


def test_a_slice_is_its_steps_from_one_idle_device_to_the_next() -> None:
    laid_out = timeline(60, [])
    assert sliced_times(laid_out, 5, RESTS, STAMPS) == FIRST + [47 * MS // 5] * 5
    assert sliced_times(laid_out, 5, [], [49 * MS, 50 * MS, 101 * MS, 101 * MS]) == FIRST
    assert sliced_times(laid_out, 5, [], []) == sliced_times(laid_out, 5, [], [49 * MS]) == []


def test_a_slice_with_an_evaluation_counts_without_it_and_only_where_there_is_no_other() -> None:
    laid_out = timeline(60, [segment(SegmentKind.EVALUATION, 12)])
    assert sliced_times(laid_out, 5, RESTS, STAMPS) == FIRST
    assert sliced_times(laid_out, 5, RESTS[1:], STAMPS) == [(47 - 10) * MS // 4] * 4


def test_a_step_in_which_the_probe_looked_counts_on_a_device_without_the_look() -> None:
    """The host has waited in it for what it had launched in others."""
    looked = timeline(60, [segment(SegmentKind.PAUSE, 12)])
    assert sliced_times(looked, 5, RESTS, STAMPS) == FIRST + [(47 - 4) * MS // 5] * 5
    assert step_times(looked, 50, on_device=True) == [10 * MS] * 10
    assert len(step_times(looked, 5)) == 54
    assert step_times(looked, 12, on_device=True)[0] == 6 * MS


def test_a_process_that_says_it_rested_long_before_it_was_stopped_is_not_believed() -> None:
    laid_out, rests = timeline(60, []), [(49 * MS, 50 * MS), (402 * MS, 404 * MS)]
    stamps = [48 * MS, 48 * MS, 49 * MS, 50 * MS, 101 * MS, 404 * MS, 404 * MS, 404 * MS]
    assert sliced_times(laid_out, 5, rests, stamps) == [352 * MS // 35] * 35


def test_rollouts_and_evaluations_after_the_warm_up_are_timed_by_themselves() -> None:
    kinds = (SegmentKind.ROLLOUT, SegmentKind.EVALUATION, SegmentKind.COMPILATION)
    laid_out = timeline(
        20, [segment(kind, step) for step, kind in zip((2, 8, 12, 15), (kinds[0], *kinds), strict=True)]
    )
    assert between_steps(laid_out, 5) == (("rollout", 4 * MS), ("evaluation", 4 * MS))
