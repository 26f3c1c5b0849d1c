"""What a person sees on a terminal; files and pipes get the same text, whole and without colours."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from preloading import python
from report.stored_reports import stored

from steptime.answer.screen import folded
from steptime.report import json

STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "r.json"
    path.write_text(json.render(stored("quiet-1")), encoding="utf-8")
    return path


def on_terminal(path: Path, columns: int, **variables: str) -> str:
    """What `steptime diagnose` writes to a terminal of so many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    words = [python(), "-m", "steptime", "diagnose", str(path)]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env={**kept, "TERM": "xterm", **variables}
    ) as process:
        os.close(theirs)
        displayed = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed: all has been read
                break
            displayed += piece
            if not piece:
                break
        os.close(ours)
    assert process.returncode == 0, displayed
    return displayed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [50, 80, 100])
def test_a_terminal_gets_its_own_width_and_every_word(saved: Path, columns: int) -> None:
    displayed = STYLE.sub("", on_terminal(saved, columns))
    wide = [line for line in displayed.splitlines() if len(line) > columns]
    assert all(line.startswith("Next:") or " " not in line.strip() for line in wide)
    assert "…" not in displayed
    first = stored("quiet-1").processes[0].findings[0]
    assert " ".join(first.summary.split()) in " ".join(displayed.split())


def test_colours_are_for_terminals_that_want_them(saved: Path) -> None:
    assert STYLE.search(on_terminal(saved, 80))
    for refusal in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert not re.search(r"\x1b\[[0-9;]*3\d", on_terminal(saved, 80, **refusal))


def test_pipes_get_no_colours_and_whole_sentences(saved: Path) -> None:
    words = [python(), "-m", "steptime", "diagnose", str(saved)]
    run = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "FORCE_COLOR": "1"})
    assert "\x1b" not in run.stdout
    for finding in stored("quiet-1").processes[0].findings[:1]:
        assert f"  {finding.summary}\n" in run.stdout


def test_further_lines_of_a_sentence_stand_behind_its_label() -> None:
    assert folded("Cost:  " + "word " * 6, 22) == ["Cost:  word word word", "       word word word"]
    assert folded("  → " + "word " * 6, 22) == ["  → word word word", "    word word word"]
    assert folded("  " + "word " * 5, 12) == ["  word word", "  word word", "  word"]


def test_commands_and_paths_stay_whole() -> None:
    command = "Next:  steptime try " + "x" * 60
    assert folded(command, 40) == [command]
    path = "/a/" + "b" * 60 + "/train.py:12:"
    assert folded(f"  {path} loss.backward()", 40) == [f"  {path}", "  loss.backward()"]


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    assert folded("a step of 12.3 ms ± 4 ms", 16) == ["a step of", "12.3 ms ± 4 ms"]
    assert folded("a share that is 12 %, no more", 19) == ["a share that is", "12 %, no more"]
