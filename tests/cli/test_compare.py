"""`steptime compare` as a user and as a CI system run it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from patience import PATIENCE
from preloading import steptime_words
from report.stored_reports import REPORTS, longer_by, stored

from steptime.report import json as report_json

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    path = tmp_path / "slow.json"
    path.write_text(report_json.render(longer_by(stored("quiet-2"), "python", 20e6)))
    return path


def test_two_reports_are_compared_on_standard_output(steptime: Steptime) -> None:
    run = steptime("compare", REPORTS / "quiet-1.json", REPORTS / "quiet-2.json")
    assert run.returncode == 0
    assert "No difference found" in run.stdout
    assert run.stderr == ""


def test_a_breach_ends_with_one_and_a_line(steptime: Steptime, slow: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate.xml"
    bounds = "step>5%, memory>50%"
    run = steptime("compare", REPORTS / "quiet-1.json", slow, "--fail-on", bounds, "-o", gate)
    assert run.returncode == 1
    lines = [line for line in run.stderr.splitlines() if "BREACHED" in line]
    assert len(lines) == 1
    assert re.match(r"steptime: BREACHED step>5%: step changed by \+\d+ % \(\+", lines[0])
    suite = ElementTree.parse(gate).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_undecided_fails_only_when_strict(steptime: Steptime) -> None:
    words = ("compare", REPORTS / "quiet-1.json", REPORTS / "busy-1.json", "--fail-on", "step>5%")
    assert steptime(*words).returncode == 0
    strict = steptime(*words, "--strict")
    assert strict.returncode == 1
    assert "UNDECIDED step>5%" in strict.stderr


def test_json_goes_to_standard_output_alone(steptime: Steptime, slow: Path) -> None:
    run = steptime("compare", REPORTS / "quiet-1.json", slow, "--json")
    document = json.loads(run.stdout)
    assert document["schema_version"] == 3
    assert document["step"]["outcome"] == "more"


def test_every_format_is_written_and_no_file_of_others_is_overwritten(
    steptime: Steptime, slow: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"out.{kind}" for kind in ("txt", "md", "json", "html", "xml")]
    words = [word for file in files for word in ("-o", file)]
    run = steptime("compare", REPORTS / "quiet-1.json", slow, *words)
    assert run.returncode == 0
    assert all(file.stat().st_size > 300 for file in files)
    assert run.stderr.count("Wrote ") == len(files)
    again = steptime("compare", REPORTS / "quiet-1.json", slow, *words)
    assert again.returncode == 0
    assert again.stderr.count("replacing the old file") == len(files)
    files[0].write_text("mine")
    refused = steptime("compare", REPORTS / "quiet-1.json", slow, *words)
    assert refused.returncode == 1
    assert "(output-exists)" in refused.stderr
    assert files[0].read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "status", "slug"),
    [
        (("a.json",), 2, "compare-two"),
        (("nowhere", "else"), 1, "no-such-file"),
        (("quiet-1.json", "quiet-2.json", "--fail-on", "speed>5%"), 2, "gate-bound"),
        (("quiet-1.json", "quiet-2.json", "-o", "gate.pdf"), 1, "output-format"),
        (("quiet-1.json", "quiet-2.json", "--noise", "x"), 2, "usage"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(
    steptime: Steptime, words: tuple[str, ...], status: int, slug: str
) -> None:
    run = steptime("compare", *(str(REPORTS / word) if word.startswith("quiet") else word for word in words))
    assert run.returncode == status
    assert run.stdout == ""
    assert run.stderr.strip().endswith(f"({slug})")
    assert len(run.stderr.splitlines()) == 1


def test_the_summary_of_a_step_of_github_is_appended_to(slow: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    command = steptime_words("compare", str(REPORTS / "quiet-1.json"), str(slow), "--fail-on", "step>5%")
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(summary)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 1
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("# before\n# steptime: quiet-1.json against slow.json\n\n**The step is")
    assert "breached" in text


def test_no_source_leaves_lines_out(steptime: Steptime, slow: Path) -> None:
    words = ("compare", REPORTS / "quiet-1.json", REPORTS / "busy-1.json", "--json")
    assert "decode_png" in steptime(*words).stdout
    assert "decode_png" not in steptime(*words, "--no-source").stdout


def test_a_breach_is_reported_once_on_a_terminal(slow: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["compare", str(REPORTS / "quiet-1.json"), str(slow), "--fail-on", "step>5%"]
    done = subprocess.Popen(steptime_words(*words), stdout=theirs, stderr=theirs)
    os.close(theirs)
    message = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 65536):
            message += part
    os.close(ours)
    assert done.wait(timeout=PATIENCE) == 1
    assert message.count(b"breached") == 1
