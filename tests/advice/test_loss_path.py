"""Which lines of the loop the loss is made of, told by names."""

from __future__ import annotations

from steptime.advice.loss_path import on_loss_path
from steptime.analysis.lines import LineRole
from steptime.recording.recording import CodeFacts, CodeLine


def on_path(*lines: tuple[str, str, LineRole]) -> set[int]:
    """Places, from 0, of the lines on the way; lines as (names bound, names read, role)."""
    made = tuple(CodeLine(at, "", tuple(line[0].split()), tuple(line[1].split())) for at, line in enumerate(lines))
    loop = CodeFacts(100, "train.py", "main", 0, True, made)
    return {each - 100 for each in on_loss_path(loop, {100 + at: line[2] for at, line in enumerate(lines)})}


BACKWARD = ("", "loss backward", LineRole.BACKWARD)


def test_a_loss_of_the_users_own_is_on_the_way_and_a_metric_is_not() -> None:
    forward = ("output", "model x", LineRole.FORWARD)
    loss, metric = ("loss", "own_loss output y", LineRole.PYTHON), ("hits", "output y", LineRole.PYTHON)
    assert on_path(forward, loss, metric, BACKWARD) == {1}


def test_data_that_the_model_alone_reads_is_not_on_the_way() -> None:
    noise, forward = ("x", "clean randn", LineRole.PYTHON), ("output", "model x", LineRole.FORWARD)
    assert on_path(noise, forward, ("loss", "output", LineRole.PYTHON), BACKWARD) == {2}


def test_without_a_model_that_torch_calls_all_that_the_loss_is_made_of_is_on_the_way() -> None:
    lines = (("kernel", "rows scale", LineRole.PYTHON), ("loss", "kernel solve", LineRole.PYTHON))
    assert on_path(*lines, ("seen", "kernel", LineRole.PYTHON), BACKWARD) == {0, 1}


def test_an_object_that_carries_everything_shows_no_way() -> None:
    assert on_path(("self", "self rows", LineRole.PYTHON), ("", "self backward", LineRole.BACKWARD)) == set()


def test_a_loop_without_backward_has_no_such_lines() -> None:
    assert on_path(("output", "model x", LineRole.FORWARD), ("loss", "output", LineRole.PYTHON)) == set()
