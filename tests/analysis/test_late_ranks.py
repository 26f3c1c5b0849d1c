"""Planted stragglers and nodes are named, with what they cost; equal ranks are let off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from analysis.rank_summaries import CALLS, MS, TRANSFER, exchange, job, summary

from steptime.analysis.stragglers.comparison import RankComparison, Straggler
from steptime.analysis.stragglers.straggler import by_chance, compare, informative, tail_of_student
from steptime.analysis.stragglers.summary import (
    MOST_BLOCKS,
    MOST_CALLS,
    RankSeries,
    RankSummary,
    blocks,
    kept_calls,
    widened,
)
from steptime.analysis.traffic import bus_factor

STEPS = 5


def even(ranks: int, steps: int = STEPS, seed: int = 0) -> npt.NDArray[np.float64]:
    """Work of equal ranks, with two percent of jitter."""
    return 20 * MS * np.exp(np.random.default_rng(seed).normal(0, 0.02, (ranks, steps, CALLS)))


def compared(*arguments: object, **named: object) -> RankComparison:
    comparison = compare(job(*arguments, **named))  # type: ignore[arg-type]
    assert comparison is not None
    return comparison


def late_of(*arguments: object, **named: object) -> Straggler | None:
    return compared(*arguments, **named).late


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("call", range(CALLS))
def test_a_rank_that_does_more_before_one_collective_is_named(ranks: int, call: int) -> None:
    work = even(ranks)
    work[1, :, call] += 12 * MS
    late = late_of(work)
    assert late is not None
    assert late.ranks == (1,)
    assert late.category == "input"
    assert late.excess == pytest.approx(12 * MS, rel=0.2)
    assert late.gain.value == pytest.approx(12 * MS, rel=0.3)
    assert late.gain.low <= 12 * MS


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_equal_ranks_have_no_late_one(ranks: int) -> None:
    assert [seed for seed in range(30) if late_of(even(ranks, seed=seed)) is not None] == []


def test_ranks_that_are_late_in_turns_have_no_late_one() -> None:
    work = even(4, 8)
    for step in range(8):
        work[step % 4, step, 0] += 15 * MS
    assert late_of(work) is None


@pytest.mark.parametrize("lasting", [True, False])
def test_a_processor_that_was_slow_while_steps_were_profiled_makes_no_late_rank(lasting: bool) -> None:
    """In five profiled steps one of two ranks is 12 ms late, and the watch saw that. It sees 40 others, too, in which
    either rank is the later one by turns of ten steps, as processors of a virtual machine are."""
    work = even(2)
    work[1, :, 0] += 12 * MS
    turns = np.where(np.arange(40) // 10 % 2, 12.0, 0.0) * MS
    own = [20 * MS + (0 if lasting else 12 * MS - turns), 20 * MS + (12 * MS if lasting else turns)]
    noise = np.random.default_rng(3).normal(0, 0.5 * MS, (2, 40))
    summaries = []
    for rank, each in enumerate(job(work)):
        series = blocks((own[rank] + noise[rank]).astype(np.int64), np.ones(40, np.bool_))
        summaries.append(replace(each, series=series, in_profiled=20.0 * MS + 12 * MS * rank))
    found = compare(summaries)
    assert found is not None
    assert (found.late is not None) is lasting


def test_clocks_of_hosts_do_not_matter_and_are_found() -> None:
    work = even(4)
    work[2, :, 0] += 12 * MS
    hosts = ("a", "a", "b", "b")
    comparison = compared(work, hosts=hosts, clocks=(0, 0, 5_000 * MS, 5_000 * MS))
    assert comparison.late is not None
    assert (comparison.late.ranks, comparison.late.host) == ((2,), "b")
    (clock,) = comparison.clocks
    assert (clock.host, clock.offset) == ("b", -5_000 * MS)
    assert clock.uncertainty <= 1
    assert clock.samples == STEPS * CALLS


def test_an_uncertain_clock_says_how_uncertain() -> None:
    found = job(even(2, 50), hosts=("a", "b"))
    random = np.random.default_rng(1)
    (each,) = found[1].exchanges
    moved = replace(each, start=each.start + random.integers(-MS, MS, len(each.start)))
    comparison = compare([found[0], replace(found[1], exchanges=(moved,))])
    assert comparison is not None
    (clock,) = comparison.clocks
    assert 50_000 < clock.uncertainty < MS
    assert abs(clock.offset) <= 3 * clock.uncertainty


def test_a_node_whose_ranks_are_late_together_is_reported_from_a_rank() -> None:
    work = even(8)
    work[4:6, :, 0] += 12 * MS
    hosts = tuple("aabbccdd")
    late = late_of(work, hosts=hosts)
    assert late is not None
    assert late.node
    assert (late.ranks, late.host) == ((4, 5), "c")


def test_who_came_late_because_he_had_to_wait_is_not_to_blame() -> None:
    """Two groups of two ranks each in one direction, two in the other: 3 waits for 2, and makes 1 wait in turn."""
    step = np.arange(10)
    start = np.asarray(100.0 * MS * step, np.float64)
    own = {0: 10.0, 1: 10.0, 2: 40.0, 3: 10.0}
    first = {rank: start + own[rank] * MS for rank in range(4)}
    end = {0: first[0] + TRANSFER, 1: first[1] + TRANSFER, 2: first[2] + TRANSFER, 3: first[2] + TRANSFER}
    found = []
    for rank in range(4):
        pair, across = ("01" if rank < 2 else "23"), ("02" if rank % 2 == 0 else "13")
        peer = rank + 2 if rank < 2 else rank - 2
        since = end[rank] + 5 * MS
        done = np.asarray(np.maximum(since, end[peer] + 5 * MS) + TRANSFER, np.float64)
        found.append(
            summary(
                rank,
                exchange(first[rank], end[rank] - first[rank], step, "tp", 2, pair),
                exchange(since, done - since, step, "dp", 2, across),
                own=own[rank] * MS,
                wall=100 * MS,
                steps=10,
            )
        )
    comparison = compare(found)
    assert comparison is not None
    assert comparison.late is not None
    assert comparison.late.ranks == (2,)
    assert comparison.late.share == pytest.approx(1.0)


def test_a_lateness_that_starts_later_is_dated_by_the_table_of_steps() -> None:
    found = job(even(4))
    random = np.random.default_rng(2)
    own = random.normal(20 * MS, 0.3 * MS, (4, 200)).astype(np.int64)
    own[3, 120:] += 15 * MS
    known = np.ones(200, np.bool_)
    with_series = [replace(each, exchanges=(), series=blocks(own[rank], known)) for rank, each in enumerate(found)]
    comparison = compare(with_series)
    assert comparison is not None
    late, series = comparison.late, comparison.series
    assert late is not None
    assert series is not None
    assert late.ranks == (3,)
    assert late.since is not None
    assert abs(late.since - 120) <= series.width
    assert late.steadiness is not None
    assert late.steadiness > 0.95
    assert late.gain.value == pytest.approx(15 * MS * 80 / 200, rel=0.1)


def test_a_job_whose_ranks_trace_in_part_is_compared_by_the_table_of_steps() -> None:
    found = job(even(4))
    own = np.full((4, 50), 20 * MS)
    own[2] += 10 * MS
    known = np.ones(50, np.bool_)
    mixed = [
        replace(each, exchanges=each.exchanges if rank < 2 else (), series=blocks(own[rank], known))
        for rank, each in enumerate(found)
    ]
    comparison = compare(mixed)
    assert comparison is not None
    assert comparison.late is not None
    assert comparison.late.ranks == (2,)


def test_ranks_that_profiled_other_steps_are_compared_on_those_that_all_have() -> None:
    work = even(3, 6)
    work[1, :, 0] += 12 * MS
    whole = job(work)
    early = tuple(range(40, 45))

    def window(rank: int, first: int, numbers: tuple[int, ...]) -> RankSummary:
        (each,) = whole[rank].exchanges
        mine = slice(CALLS * first, CALLS * (first + 5))
        columns = {name: getattr(each, name)[mine] for name in ("start", "duration", "bytes")}
        cut = replace(each, calls=5 * CALLS, step=np.repeat(np.arange(5), CALLS), **columns)
        return replace(whole[rank], exchanges=(cut,), numbers=numbers, steps=5)

    same = compare([window(0, 0, early), window(1, 0, early), window(2, 1, tuple(range(41, 46)))])
    assert same is not None
    assert "4 common steps are compared" in same.notes[0]
    assert same.late is not None
    assert same.late.ranks == (1,)
    (row,) = same.collectives
    assert row.transfer == pytest.approx(CALLS * TRANSFER, rel=1e-6)  # each is laid next to itself
    none = compare([window(0, 0, (1, 2, 3, 4, 5)), window(1, 0, (11, 12, 13, 14, 15))])
    assert none is not None
    assert none.collectives == ()


def test_bus_bandwidth_follows_the_factors_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == pytest.approx(1.75)
    assert bus_factor("_reduce_scatter_base", 4) == pytest.approx(0.75)
    assert bus_factor("_allgather_base", 4) == pytest.approx(0.75)
    assert bus_factor("all_to_all", 2) == pytest.approx(0.5)
    assert bus_factor("broadcast", 8) == 1.0
    assert bus_factor("allreduce", 1) is None
    assert bus_factor("barrier", 8) is None
    (row,) = compared(even(8)).collectives
    assert row.algorithm_bandwidth == pytest.approx((64 << 20) / (TRANSFER / 1e9))
    assert row.bus_bandwidth == pytest.approx(1.75 * (64 << 20) / (TRANSFER / 1e9))


def test_collectives_that_not_all_call_equally_often_are_reported_and_left_out() -> None:
    found = job(even(3))
    (each,) = found[2].exchanges
    cut = replace(
        each,
        calls=each.calls - 1,
        **{name: getattr(each, name)[:-1] for name in ("step", "start", "duration", "bytes")},
    )
    comparison = compare([*found[:2], replace(found[2], exchanges=(cut,))])
    assert comparison is not None
    assert comparison.collectives == ()
    assert "not called equally often" in comparison.notes[0]


def test_a_summary_keeps_some_of_every_kind_by_a_rule_of_counts_alone() -> None:
    kept = kept_calls([100_000, 10, 2])
    assert kept == [MOST_CALLS * 100_000 // 100_012, 8, 2]
    assert kept_calls([5, 7]) == [5, 7]


def test_a_series_of_any_length_fits_its_columns_and_widens_to_others() -> None:
    own = np.arange(100_000)
    series = blocks(own, own % 10 != 0)
    assert series is not None
    assert series.width == 512
    assert len(series.own) <= MOST_BLOCKS
    assert series.own[1] == pytest.approx(512 + 255.5, abs=2)
    wide = widened(RankSeries(2, np.array([10, 20, -1, 40, -1, -1])), 4)
    assert wide.own.tolist() == [15, 40, -1]
    assert blocks(own, np.zeros(100_000, np.bool_)) is None


def test_chance_of_coming_last_is_the_binomial_tail_for_any_rank() -> None:
    assert by_chance(10, 10, 0.5) == pytest.approx(1 / 1024)
    assert by_chance(0, 10, 0.25) == pytest.approx(1.0)
    assert by_chance(0, 0, 0.5) == 1.0
    assert by_chance(5000, 10_000, 0.001) == pytest.approx(0.0, abs=1e-12)


def test_the_tail_of_student_agrees_with_its_tables() -> None:
    for count, t, tail in ((3, 9.925, 0.005), (5, 4.604, 0.005), (10, 2.821, 0.01), (30, 2.045, 0.025)):
        base = np.linspace(-1, 1, count)
        values = base + t * base.std(ddof=1) / np.sqrt(count)
        assert tail <= tail_of_student(values) * 1.01 <= 1.3 * tail  # it errs to the safe side
    assert tail_of_student(np.array([-1.0, -2.0, -3.0])) == 1.0
    assert tail_of_student(np.array([2.0, 2.0, 2.0])) == 0.0


def test_the_ranks_worth_a_look_are_few_and_hold_the_late_one() -> None:
    work = even(40)
    work[17, :, 0] += 15 * MS
    chosen = informative(compared(work))
    assert chosen[0] == 17
    assert 0 in chosen
    assert len(chosen) <= 4
