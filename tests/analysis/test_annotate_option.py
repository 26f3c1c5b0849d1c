"""`steptime diagnose TRACE --annotate FILE`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analysis.trace_events import kernel, operator, step

from steptime.analysis.what_if.annotate import CATEGORY
from steptime.cli.main import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Steps with a kernel each."""
    path = tmp_path / "trace.json"
    events = []
    for at in range(0, 500, 100):
        events += [step(at, at + 100, at), operator("aten::mm", at, at + 90), kernel(at + 1, at + 20, at + 80)]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_the_copy_is_written_and_named(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "annotated.json"
    assert main(["diagnose", str(trace), "--annotate", str(out)]) == 0
    assert f"Wrote {out}" in capsys.readouterr().err
    assert any(event.get("cat") == CATEGORY for event in json.loads(out.read_text())["traceEvents"])


def test_what_cannot_be_written_is_refused_before_the_work(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(trace), "--annotate", str(tmp_path / "annotated.txt")]) == 1
    captured = capsys.readouterr()
    assert "(output-format)" in captured.err
    assert captured.out == ""


def test_several_traces_and_folders_are_refused(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for paths in ([str(trace), str(trace)], [str(tmp_path)]):
        assert main(["diagnose", *paths, "--annotate", str(tmp_path / "annotated.json")]) == 2
        assert "(annotate-one-trace)" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
