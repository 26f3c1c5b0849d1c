"""`--no-source`, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from steptime.advice.evidence import Case, LineUse
from steptime.advice.rule import Finding, Weight
from steptime.advice.run_uses import StepSummary
from steptime.advice.verdict import Verdict
from steptime.cli.main import steptime
from steptime.quantities import Estimate, SourceLine
from steptime.report import json
from steptime.report.report import SCHEMA_VERSION, JobEnvironment, ProcessReport, Report


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A report with a line of source, saved as JSON."""
    step = Estimate(5e6, 4e6, 6e6, 20)
    line = SourceLine("/home/ada/train.py", 7, "main", "for batch in loader:")
    case = Case(StepSummary(step, 30, 20, 3, "optimizer", "cpu"), lines=(LineUse(line, "input", step, step, 1.0),))
    finding = Finding(
        "ST101", "input-wait", Weight.FINDING, "waits at train.py:7", "More workers.", step, "input", line
    )
    process = ProcessReport("pid 1", None, case, Verdict("input", "Input."), (finding,), (), (), None, (1,), (True,))
    environment = JobEnvironment("python /home/ada/train.py", "box", "cpu", "3.11", "2.13", "0.1.0")
    report = Report(SCHEMA_VERSION, "/home/ada/runs/train", environment, (process,), "steptime explain ST101")
    path = tmp_path / "saved.json"
    path.write_text(json.render(report), encoding="utf-8")
    return path


@pytest.mark.parametrize("extension", ["html", "md", "json", "txt"])
def test_source_lines_and_paths_are_displayed_unless_they_are_not_wanted(saved: Path, extension: str) -> None:
    displayed, hidden = saved.with_name(f"shown.{extension}"), saved.with_name(f"hidden.{extension}")
    for path, options in ((displayed, []), (hidden, ["--no-source"])):
        run = CliRunner().invoke(steptime, ["report", str(saved), "-o", str(path), *options], standalone_mode=False)
        assert run.exception is None, run.exception
    assert "train.py:7" in displayed.read_text(encoding="utf-8") or extension == "json"
    assert "for batch in loader" in displayed.read_text(encoding="utf-8")
    for word in ("for batch in loader", "train.py:7", "/home"):
        assert word not in hidden.read_text(encoding="utf-8")
