"""What is said while variants run: a line for each process, and the step in place where there is a terminal."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from steptime.changes import VariantOptions
from steptime.cli.trial import TrialAnnouncer
from steptime.trials.conduct import Notice
from steptime.trials.execute import ScheduledRun
from steptime.trials.trial import Variant

TURN = ScheduledRun(Variant("RM101", label="num_workers=2"), 0, 1, 4, VariantOptions(24))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_process_that_starts_is_named_with_the_time_to_go() -> None:
    message: list[str] = []
    announcer = TrialAnnouncer(message.append)
    announcer.show(Notice(TURN, 29, 0, 90.0, True))
    announcer.show(Notice(TURN, 29, 7, 80.0, False))
    assert message == ["RM101 num_workers=2: round 2 of 3, 29 steps; about 1 min 30 s to go"]


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
    assert drawn[1].endswith("\rRM101 num_workers=2: round 2 of 3, 29 steps")
