"""What a line takes in a usual step, from the few steps in which lines are timed."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.analysis.lines import LinedTurns, LinePieces, LineTable, lined_turns, usual_spent
from steptime.analysis.timeline import Phase, Steps
from steptime.arrays import Bool, Float64

REST = Phase.REST
NOTHING = np.zeros(0, np.int64)
PLAIN, CALLING = 0, 1
"""Rows: a line of plain Python, and one that holds a call which the probe wraps."""


def shares(
    spent: tuple[float, float],
    timing: tuple[int, int],
    usual: float | tuple[float, float, float, float],
    slowed: int = 1,
) -> tuple[Float64, Float64]:
    """Of two lines that take so much of two like steps outside of the phases. usual: of all, or each, of four steps;
    slowed: how many times as long as when lines were timed their forward is."""
    table = np.zeros((2, 2, len(Phase)), np.int64)
    for row, each in enumerate(spent):
        table[row, :, REST] = each
    steps = table.sum(axis=(0, 2))
    made = LineTable(
        np.array([1, 2]),
        steps,
        table,
        np.array([[each, each] for each in timing]),
        np.zeros(2, np.int64),
        LinePieces(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING),
    )
    lined, after = np.zeros((2, len(Phase)), np.int64), np.zeros((4, len(Phase)), np.int64)
    lined[:, REST], after[:, REST] = steps, usual
    lined[:, Phase.FORWARD], after[:, Phase.FORWARD] = 100, 100 * slowed
    watched: Bool = np.array([False, True])
    turns = LinedTurns(None, np.zeros(2, np.bool_), np.ones(2))
    found, scales = usual_spent(made, lined, after, watched, turns)
    return found[:, :, REST].mean(axis=1), scales[:, REST]


def test_what_timing_took_is_taken_out_where_it_was_taken() -> None:
    found, scales = shares((400, 100), (0, 60), usual=440)
    assert found.tolist() == [400, 40]
    assert scales.tolist() == [1, 1]


def test_what_the_probe_takes_to_listen_is_taken_from_the_calls_that_it_wraps() -> None:
    found, _ = shares((400, 200), (0, 0), usual=450)
    assert found.tolist() == [400, 50], "plain Python is as long as it was"


def test_lines_are_never_longer_together_than_the_usual_step() -> None:
    found, _ = shares((400, 50), (0, 0), usual=300)
    assert found.tolist() == pytest.approx([300, 0])
    found, _ = shares((100, 50), (500, 500), usual=300)
    assert found.tolist() == [0, 0], "no more is taken out than there is"


def test_what_every_other_step_did_and_no_timed_one_is_of_no_line_that_was_timed() -> None:
    """A plot each fourth step: a loss of 100 ns and what stands around an update are not what takes it."""
    found, _ = shares((100, 50), (0, 0), usual=(150, 150, 150, 6000))
    assert found.tolist() == [100, 50]


def test_what_usual_steps_take_longer_is_of_the_jobs_own_lines() -> None:
    """As where a list is searched that grows: calls that the probe wraps stay what they are."""
    found, _ = shares((100, 50), (0, 0), usual=(600, 600, 600, 600))
    assert found.tolist() == pytest.approx([550, 50])
    found, _ = shares((100, 50), (0, 0), usual=180)
    assert found.tolist() == pytest.approx([130, 50])


def test_where_the_machine_became_slower_all_lines_did() -> None:
    """By as much as forward did; what single steps take beyond that is of no line."""
    found, _ = shares((100, 0), (0, 0), usual=(200, 300, 300, 9000), slowed=3)
    assert found.tolist() == [300, 0]


@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_lines_of_every_fourth_step_are_a_fourth_however_many_of_those_were_timed(first: int) -> None:
    """Seven steps are timed by line, of which one or two are slow by 800 ns in a line of their own."""
    slow = np.arange(200) % 4 == 0
    phases = np.zeros((200, len(Phase)), np.int64)
    phases[:, REST] = 100 + np.random.default_rng(1).integers(0, 5, 200) + 800 * slow
    duration = phases.sum(axis=1)
    end, no, yes = np.cumsum(duration), np.zeros(200, np.bool_), np.ones(200, np.bool_)
    lined = (np.arange(200) >= first) & (np.arange(200) < first + 7)
    steps = Steps(end - duration, end, duration, phases, np.ones(200, np.int64), no, lined, yes, no, lined)
    spent = np.zeros((2, 7, len(Phase)), np.int64)
    spent[0, :, REST] = np.where(slow[lined], phases[lined, REST] - 800, phases[lined, REST])
    spent[1, :, REST] = 800 * slow[lined]
    pieces = LinePieces(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    table = LineTable(
        np.array([1, 2]), duration[lined], spent, np.zeros((2, 7), np.int64), np.zeros(7, np.int64), pieces
    )
    turns = lined_turns(steps)
    assert turns.slow.tolist() == slow[lined].tolist()
    usual = phases[steps.steady]
    found, _ = usual_spent(table, phases[lined], usual, np.zeros(2, np.bool_), turns)
    assert found[:, :, REST].mean(axis=1).tolist() == pytest.approx([102, 200], rel=0.02)
