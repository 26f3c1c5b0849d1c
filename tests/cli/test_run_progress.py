"""What `steptime run` says beside a running job."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steptime.cli.announcer import Announcer, end_bar, say_above
from steptime.launcher.outcome import WAITING, Progress
from steptime.launcher.progress import PROFILED, WATCHING


def progress(seconds: float, steps: int, stage: str, notice: str = "") -> Progress:
    return Progress(seconds, steps, 1 if steps else 0, stage, notice)


def test_few_lines_are_said_of_a_long_job() -> None:
    said: list[str] = []
    announcer = Announcer(said.append)
    announcer.show(progress(0, 0, WAITING))
    assert said == [], "nothing is known yet"
    for half_seconds in range(1, 2 * 3600 * 2):
        seconds = half_seconds / 2
        announcer.show(progress(seconds, int(seconds), PROFILED if seconds > 20 else WATCHING))
    times = [line.partition(" s")[0] for line in said]
    assert times == ["0", "20", "60", "120", "240", "480", "960", "1920", "3840"]
    assert said[3] == "120 s, 120 steps: watching, profile taken"


def test_a_notice_is_said_once() -> None:
    said: list[str] = []
    announcer = Announcer(said.append)
    for _ in range(3):
        announcer.show(progress(1, 0, WAITING, "not measured"))
    assert said == ["not measured"]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_line_takes_the_place_of_a_progress_bar_in_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        monkeypatch.setattr(sys, "stderr", stream)
        say_above("60 s")
    assert terminal.getvalue() == "\r\x1b[Ksteptime: 60 s\n", "the bar draws itself again below"
    assert file.getvalue() == "steptime: 60 s\n"


def test_in_a_file_a_line_of_ours_begins_below_what_the_job_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with path.open("a", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stderr", file)
        say_above("1 s")
        file.write(" 10%|#         | 1/10")  # as the job writes into the same file
        file.flush()
        say_above("2 s")
        end_bar()
        say_above("3 s")
    assert path.read_text() == "steptime: 1 s\n 10%|#         | 1/10\nsteptime: 2 s\nsteptime: 3 s\n"


def test_in_a_pipe_only_an_open_bar_makes_a_new_line() -> None:
    said: list[str] = []
    announcer = Announcer(said.append, lambda: said.append("end"))
    announcer.show(progress(3, 1, WATCHING))
    announcer.show(replace(progress(60, 9, WATCHING), bar=True))
    assert said == ["3 s, 1 step: watching", "end", "60 s, 9 steps: watching"]


def test_a_bar_in_a_pipe_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    end_bar()
    assert pipe.getvalue() == "\n"


def test_one_step_is_one_step() -> None:
    said: list[str] = []
    Announcer(said.append).show(progress(3, 1, WATCHING))
    assert said == ["3 s, 1 step: watching"]
