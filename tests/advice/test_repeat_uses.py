"""Of lines that call each other and compute again what was there, the one that is to be changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import phases

from steptime.advice.repeat_evidence import GOING_THROUGH, Looked, _apart, repeat_uses, work_uses
from steptime.advice.run_uses import RepeatUse
from steptime.quantities import SourceLine
from steptime.recording.recording import LineWork, RepeatedLine, RepeatFacts, WholeRead

CALL = SourceLine("train.py", 44, "product", "kl = kl_divergence(old, policy(states))")
FORWARD = SourceLine("train.py", 22, "Policy.forward", "return Normal(self.body(states), self.scale)")
BELOW = SourceLine("train.py", 18, "features", "return states.pow(2).cos()")
CALLED = RepeatedLine(CALL, 10.0, 9.0, 4, 9e6, depth=2)
IN_FORWARD = RepeatedLine(FORWARD, 12.0, 10.0, 5, 10e6, outer=CALL, part="forward", depth=3)
IN_HELPER = RepeatedLine(BELOW, 12.0, 10.0, 5, 9.5e6, outer=FORWARD, part="forward", depth=4)


def test_a_model_whose_call_comes_again_is_not_entered() -> None:
    assert _apart([IN_FORWARD, CALLED, IN_HELPER]) == [CALLED]


def test_a_line_in_a_forward_that_comes_again_for_another_input_is_named_itself() -> None:
    assert _apart([IN_FORWARD, IN_HELPER]) == [IN_HELPER]
    assert _apart([IN_FORWARD, replace(CALLED, duration=2e6)]) == [IN_FORWARD]


def test_the_innermost_line_that_takes_nearly_all_is_named() -> None:
    helper = replace(IN_HELPER, outer=CALL, depth=3)
    assert _apart([CALLED, helper]) == [helper]
    assert _apart([CALLED, replace(helper, duration=3e6)]) == [CALLED]


def use_of(line: RepeatedLine) -> RepeatUse:
    """A line that comes again, where forward takes 20 ms and backward 30 ms of a step."""
    looked = Looked(RepeatFacts(0, 1, 0, 4, lines=(line,)))
    (use,) = repeat_uses([looked], phases(forward=20e6, backward=30e6), 60e6)
    return use


def saved(line: RepeatedLine) -> tuple[float, float, float]:
    use = use_of(line)
    return round(use.duration.value), round(use.duration.low), round(use.duration.high)


def test_what_comes_again_with_a_graph_goes_through_backward_again() -> None:
    assert saved(IN_FORWARD) == (10e6, 7e6, 13e6)
    assert saved(replace(IN_FORWARD, with_graph=10e6)) == (25e6, 7e6, 32.5e6)
    assert saved(replace(IN_FORWARD, with_graph=9e300)) == saved(replace(IN_FORWARD, with_graph=10e6))
    assert saved(replace(IN_FORWARD, with_graph=-5e6)) == saved(IN_FORWARD)
    assert [use_of(replace(IN_FORWARD, with_graph=each)).trained for each in (10e6, 1e6)] == [True, False]
    assert saved(replace(IN_FORWARD, with_graph=10e6, first=CALL, asker=BELOW)) == saved(IN_FORWARD)
    assert saved(replace(IN_FORWARD, with_graph=10e6, part="input")) == saved(IN_FORWARD)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("os.listdir", "folder"), ("glob.glob", "folder"), ("pathlib.Path.iterdir", "folder"),
     ("pathlib._local.Path.glob", "folder"), ("copy.deepcopy", "copy"),
     ("__main__.Walkers.walk", ""), ("games.Maze.iterdir", ""), ("model.Tree.scandir", "")],
)  # fmt: skip
def test_a_folder_is_searched_by_functions_for_folders_alone(name: str, kind: str) -> None:
    assert next((each for each, names in GOING_THROUGH.items() if names.fullmatch(name)), "") == kind


@pytest.mark.parametrize(("evaluations", "found"), [(1 / 3, False), (1.0, True)])
def test_a_line_goes_through_a_list_where_it_took_long_more_than_once(evaluations: float, found: bool) -> None:
    rows = (WholeRead("self.rows", "list", 300_000),)
    work = LineWork(BELOW, evaluations, evaluations * 9e6, "input", own=evaluations * 9e6, read=rows)
    looked = Looked(RepeatFacts(0, 1, 0, 3, works=(work,)))
    uses = work_uses([looked], {}, (), 1e9)
    assert [(use.kind, use.duration.samples) for use in uses] == [("container", 3)] * found
