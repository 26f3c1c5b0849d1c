"""What is said while variants run: a line for each process, and the step in place where there is a terminal."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from steptime.changes import VariantOptions
from steptime.cli.trial import TrialAnnouncer, _say_what_it_takes, far_end_first
from steptime.trials.conduct import Notice
from steptime.trials.execute import ScheduledRun
from steptime.trials.results import Plan
from steptime.trials.trial import Budget, Variant

TURN = ScheduledRun(Variant("RM101", label="num_workers=2"), 0, 1, 4, VariantOptions(24))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_process_that_starts_is_named_with_the_time_to_go() -> None:
    message: list[str] = []
    announcer = TrialAnnouncer(message.append)
    announcer.show(Notice(TURN, 29, 0, 90.0, True))
    announcer.show(Notice(TURN, 29, 7, 80.0, False))
    assert message == ["RM101 num_workers=2: round 2 of 2, 29 steps; about 1 min 30 s to go"]


def test_rounds_beyond_those_that_are_needed_promise_no_end() -> None:
    message: list[str] = []
    TrialAnnouncer(message.append).show(Notice(replace(TURN, round=6), 29, 0, 45.0, True))
    assert message == ["RM101 num_workers=2: round 7 of 12 at most, 29 steps; this round: about 45 s"]


def test_in_a_terminal_the_step_is_counted_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def say(line: str) -> None:
        terminal.write(f"{line}\n")

    announcer = TrialAnnouncer(say)
    announcer.show(Notice(TURN, 29, 0, None, True))
    announcer.show(Notice(TURN, 29, 9, 80.0, False))
    announcer.show(Notice(TURN, 29, 10, None, False))
    announcer.show(Notice(TURN, 29, 0, None, True))
    announcer.show(None)
    drawn = terminal.getvalue().split("\n")
    assert drawn[1].count("\r") >= 3
    assert "step 9 of 29; about 1 min 20 s to go" in drawn[1]
    assert drawn[1].endswith("\rRM101 num_workers=2: round 2 of 2, 29 steps")


def test_a_budget_that_cannot_decide_is_reported_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    handed = tuple(Variant(f"diff-{number}", sources=(("train.py", str(number)),)) for number in range(4))
    plan = Plan(
        ("python",), "/job", "", handed, 0.03, step_seconds=0.05, start_seconds=4.0, importing_seconds=3.5, warm_up=20
    )
    _say_what_it_takes(plan, Budget(160.0), forking=False)
    message = " ".join(capsys.readouterr().err.split())
    assert "may be too short to decide all 4" in message
    assert "22 processes, about 2 min 44 s in all. --budget 3m is enough for all" in message
    _say_what_it_takes(plan, Budget(180.0), forking=False)
    assert capsys.readouterr().err == ""


def test_a_budget_is_held_against_what_forks_cost(capsys: pytest.CaptureFixture[str]) -> None:
    handed = (Variant("diff-1", sources=(("train.py", "1"),)),)
    plan = Plan(
        ("python",), "/job", "", handed, 0.03, step_seconds=0.02, start_seconds=9.0, importing_seconds=8.5, warm_up=20
    )
    _say_what_it_takes(plan, Budget(60.0), forking=True)
    assert capsys.readouterr().err == ""
    _say_what_it_takes(plan, Budget(60.0), forking=False)
    assert "too short to prove a change" in capsys.readouterr().err


def test_of_numbers_of_workers_both_ends_are_tried_first() -> None:
    assert far_end_first((1, 2, 4, 8)) == [8, 1, 2, 4]
    assert far_end_first((2,)) == [2]
