"""Verbs without ceremony: nothing named means the newest recording, a folder of them is listed, and what another verb
takes gets that verb's command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from report.stored_reports import stored

from steptime.cli.wrong_kind import kind_of
from steptime.errors import RecordingError
from steptime.recording.newest import LISTED, listed, newest, newest_two, recordings_in
from steptime.report import json as reports

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]
GPU = Path(__file__).resolve().parent.parent / "data" / "gpu"


def make(folder: Path, started: int, *command: str) -> Path:
    """A recording, as far as its manifest goes."""
    folder.mkdir(parents=True)
    fields = {"format_version": 1, "command": list(command), "directory": "/job", "started_epoch_ns": started}
    (folder / "manifest.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three recordings of two commands, the newest of another command than the others; two folders that are none."""
    monkeypatch.chdir(tmp_path)
    make(Path("runs/a"), 30, "python", "a.py")
    make(Path("runs/b"), 40, "python", "b.py")
    make(Path("runs/c"), 20, "python", "a.py")
    os.utime("runs/c/manifest.json")  # when a file was touched says nothing
    Path("runs/none").mkdir()
    (make(Path("runs/garbled"), 99) / "manifest.json").write_bytes(b"[{\xff")
    return tmp_path / "runs"


def test_the_newest_recording_is_the_one_that_started_last(runs: Path) -> None:
    assert [each.path.name for each in recordings_in(runs)] == ["b", "a", "c"]
    assert newest() == Path("runs/b")


def test_two_of_one_command_are_compared_the_older_one_first(runs: Path) -> None:
    assert newest_two() == (Path("runs/c"), Path("runs/a"))
    shutil.rmtree(runs / "c")
    with pytest.raises(RecordingError, match="no two recordings of one command"):
        newest_two()


def test_a_folder_of_recordings_lists_them_with_the_command_for_the_newest(runs: Path) -> None:
    sentence = listed(Path("runs"))
    assert sentence == (
        "runs is no recording but holds recordings: runs/b, runs/a, runs/c. The newest: steptime diagnose runs/b"
    )
    assert listed(runs.parent).endswith(f"steptime diagnose {runs}/b"), "also from the folder above"
    for number in range(LISTED):
        make(runs / f"d {number}", number + 50, "x")
    assert f"and 3 more. The newest: steptime diagnose 'runs/d {LISTED - 1}'" in listed(Path("runs"))
    assert listed(runs / "none") == ""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder that commands run in, with the same job recorded twice."""
    for name, started in (("one", 1), ("two", 2)):
        copy = tmp_path / "work" / "runs" / name
        shutil.copytree(GPU / "amp", copy)
        fields = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
        (copy / "manifest.json").write_text(json.dumps({**fields, "started_epoch_ns": started}), encoding="utf-8")
    return tmp_path / "work"


def test_verbs_take_what_is_newest_and_say_so(steptime: Steptime, work: Path) -> None:
    run = steptime("diagnose")
    assert run.returncode == 0, run.stderr
    assert run.stderr == "steptime: runs/two, the newest recording\n"
    assert "From: runs/two" in run.stdout
    compared = steptime("compare")
    assert compared.returncode == 0, compared.stderr
    assert compared.stderr.startswith("steptime: runs/one and runs/two, the two newest recordings of one command")
    refused = steptime("diagnose", "runs")
    assert refused.returncode == 1
    assert "runs/two, runs/one. The newest: steptime diagnose runs/two (no-recording)" in refused.stderr


def test_a_report_needs_no_option_and_replaces_its_own_page(steptime: Steptime, work: Path) -> None:
    assert steptime("report").stderr.endswith("steptime: Wrote report.html\n")
    assert steptime("report").stderr.endswith("steptime: Wrote report.html, replacing the old file\n")
    (work / "report.html").write_text("mine", encoding="utf-8")
    refused = steptime("report")
    assert refused.returncode == 1
    assert "--force" in refused.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("diagnose", "train.py"), "Did you mean: steptime run -- python train.py?"),
        (("report", "train.py"), "Did you mean: steptime run -- python train.py?"),
        (("compare", "report.json", "train.py"), "Did you mean: steptime run -- python train.py?"),
        (("diagnose", "go.sh"), "Did you mean: steptime run -- bash go.sh?"),
        (("diagnose", "page.html"), "Open it in a browser"),
        (("try", "page.html"), "Open it in a browser"),
        (("lab", "page.html"), "Open it in a browser"),
        (("memory", "page.html"), "Open it in a browser"),
        (("run", "runs/one"), "Did you mean: steptime diagnose runs/one?"),
        (("explain", "runs/one"), "Did you mean: steptime diagnose runs/one?"),
        (("hang", "trace.json.gz"), "Did you mean: steptime diagnose trace.json.gz?"),
        (("try", "trace.json.gz"), "Did you mean: steptime diagnose trace.json.gz?"),
        (("diagnose", "dump"), "Did you mean: steptime hang dump?"),
        (("diagnose", "snapshot"), "Did you mean: steptime memory snapshot?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_another_verb_takes_gets_its_command(
    steptime: Steptime, work: Path, words: tuple[str, ...], meant: str
) -> None:
    (work / "train.py").write_text("print('no training')\n", encoding="utf-8")
    (work / "go.sh").write_text("python train.py\n", encoding="utf-8")
    (work / "page.html").write_text("<!DOCTYPE html>\n<title>r</title>", encoding="utf-8")
    (work / "report.json").write_text(reports.render(stored("quiet-1")), encoding="utf-8")
    shutil.copy(next((work / "runs/one").glob("process-*/trace-*.json.gz")), work / "trace.json.gz")
    (work / "dump").write_bytes(b"\x80\x02}q\x00X\x09\x00\x00\x00pg_configq\x01}s.")
    (work / "snapshot").write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x08segments\x94]\x94s.")
    run = steptime(*words)
    assert run.returncode == 2, run.stderr
    assert meant in run.stderr
    assert run.stderr.endswith("(wrong-kind)\n")
    assert len(run.stderr.splitlines()) == 1


def test_a_value_of_an_option_and_the_words_of_a_job_are_no_input(steptime: Steptime, work: Path) -> None:
    (work / "report.html").write_text("<!DOCTYPE html>", encoding="utf-8")
    assert "(no-such-file)" in steptime("diagnose", "nowhere.json", "--force", "-o", "report.html").stderr
    assert "(command-not-found)" in steptime("run", "--", "no-such-program", "report.html").stderr


def test_what_is_no_file_has_no_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bnonsense")
    (tmp_path / "empty").touch()
    for name in ("pipe", "broken.gz", "empty", "nowhere", "x" * 5000, "a\0b"):
        assert kind_of(tmp_path / name) is None
