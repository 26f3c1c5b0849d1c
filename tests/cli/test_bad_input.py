"""What cannot work is told in one sentence, with what to do about it and the right status; what was measured stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from journals import MS, JournalBuilder
from preloading import python

from steptime.cli.main import VERBS, steptime as commands
from steptime.cli.options import FiniteNumber

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]

TRAINING = """
import sys, os, signal, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 1  # the journal is written four times a second
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if step == 2 and sys.argv[2] == "fail":
        raise RuntimeError("the job's own error")
    if step > 400 and time.monotonic() > end and sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
print("trained")
"""


def sentence(run: subprocess.CompletedProcess[str], slug: str) -> str:
    """The one line of ours that ends in the slug; nothing of ours is a traceback."""
    lines = [line for line in run.stderr.splitlines() if line.endswith(f"({slug})")]
    assert len(lines) == 1, run.stderr
    assert lines[0].startswith("steptime: ")
    assert "File " not in run.stderr or "the job's own error" in run.stderr, run.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "status", "slug"),
    [
        (("run",), 2, "no-command"),
        (("run", "--"), 2, "no-command"),
        (("run", "--", "no-such-program"), 127, "command-not-found"),
        (("run", "no_such_script.py"), 127, "script-not-found"),
        (("run", "--", "/"), 126, "command-not-executable"),
        (("run", "--no-such-option", "--", "true"), 2, "usage"),
        (("run", "--no-profile", "--steps", "3", "--", "true"), 2, "usage"),
        (("nan", "--recording", "/dev/null/x", "--", "true"), 1, "recording-not-writable"),
        (("run", "-o", "page.pdf", "--", "true"), 1, "output-format"),
        (("run", "-o", "/dev/null/x.md", "--", "true"), 1, "output-unwritable"),
        (("run", "--trace-ranks", "²", "--", "true"), 2, "usage"),
        (("memory", "-o", "page.pdf", "nowhere"), 1, "output-format"),
        (("memory", "-o", "/dev/null/x.md", "nowhere"), 1, "output-unwritable"),
        (("memory", "-o", "report.md", "nowhere"), 1, "no-such-file"),
        (("nan", "-o", "/dev/null/x.txt", "--", "true"), 1, "output-unwritable"),
        (("diagnose",), 1, "no-recording"),
        (("report",), 1, "no-recording"),
        (("try",), 1, "no-recording"),
        (("lab",), 1, "no-recording"),
        (("judge", "--env", "A=1"), 1, "no-recording"),
        (("memory",), 1, "no-recording"),
        (("compare",), 1, "no-recording"),
        (("compare", "nowhere"), 2, "compare-two"),
        (("diagnose", "--max-size", "9" * 400, "x"), 2, "usage"),
        (("try", "--budget", "9" * 400, "x"), 2, "usage"),
        (("compare", "--noise", "nan", "x", "y"), 2, "usage"),
        (("report", "--price", "inf", "x"), 2, "usage"),
        (("run", "--until-measured"), 2, "no-command"),
        (("try", "/proc/self", "--budget", "1m"), 1, "no-recording"),
        (("lab", "--batch-sizes", "9" * 5000, "x"), 2, "usage"),
        (("diagnose", "nowhere"), 1, "no-such-file"),
        (("diagnose", "nowhere", "else"), 1, "no-such-file"),
        (("hang", "nowhere"), 1, "no-such-file"),
        (("history", "nowhere"), 1, "no-such-file"),
        (("try", "nowhere/at/all"), 1, "no-such-file"),
        (("try", "--resume", "nowhere"), 1, "no-such-file"),
        (("try", "--fix", "RM999", "--", "true"), 2, "unknown-code"),
        (("diagnose", "."), 1, "no-recording"),
        (("report", "nowhere"), 1, "no-such-file"),
        (("explain", "ST000"), 2, "unknown-code"),
        (("env", "--python", "/bin/false"), 1, "python-without-torch"),
        (("no-such-verb",), 2, "usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_command_line_that_cannot_work_is_refused(
    steptime: Steptime, tmp_path: Path, arguments: tuple[str, ...], status: int, slug: str
) -> None:
    run = steptime(*arguments)
    assert run.returncode == status
    reported = sentence(run, slug)
    assert run.stdout == ""
    assert len(reported) < 300
    assert slug != "no-such-file" or reported.startswith("steptime: No such file or directory: nowhere")
    assert not (tmp_path / "work" / "runs").exists()


def test_no_option_takes_a_number_that_is_none() -> None:
    """click's own type of a float lets nan through any bounds."""
    for verb in VERBS:
        command = commands.get_command(click.Context(commands), verb)
        assert command is not None
        floats = [each for each in command.params if isinstance(each.type, click.types.FloatParamType)]
        assert [each.name for each in floats if not isinstance(each.type, FiniteNumber)] == [], verb


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7)])
def test_a_job_that_is_no_python_ends_as_it_would_have(steptime: Steptime, script: str, status: int) -> None:
    run = steptime("run", "--", "sh", "-c", f"echo hello; {script}")
    assert run.returncode == status
    assert run.stdout == "hello\n"
    assert f"status {status}" in sentence(run, "no-python")


def test_a_job_without_torch_leaves_no_folder_where_none_was_named(steptime: Steptime, tmp_path: Path) -> None:
    runs = tmp_path / "work" / "runs"
    for own in (False, True):
        if own:
            runs.mkdir()
        assert steptime("run", "--", python(), "-c", "print('hello')").stdout == "hello\n"
        assert runs.exists() == own
        assert not own or list(runs.iterdir()) == []


def test_what_a_job_leaves_running_keeps_its_recording(steptime: Steptime, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    steptime("run", "--", "sh", "-c", f"cat {gate} >/dev/null 2>&1 &")
    recordings = list((tmp_path / "work" / "runs").iterdir())
    gate.write_text("go\n")
    assert len(recordings) == 1


@pytest.mark.parametrize(
    "command", [("sh", "-c", "kill -9 $$"), (python(), "-c", "import os; os.kill(os.getpid(), 9)")]
)
def test_a_job_that_is_killed_before_it_trains_is_reported_so(
    steptime: Steptime, tmp_path: Path, command: tuple[str, ...]
) -> None:
    run = steptime("run", "--recording", tmp_path / "r", "--", *command)
    assert run.returncode == -9, "steptime ends as its job does"
    assert "Signal 9 (SIGKILL) ended the job before its first training step" in sentence(run, "killed-early")


def test_a_job_without_torch_is_reported_so(steptime: Steptime, tmp_path: Path) -> None:
    run = steptime("run", "--recording", tmp_path / "r", "--", python(), "-c", "print('hello')")
    assert run.returncode == 0
    assert run.stdout == "hello\n"
    assert "python train.py" in sentence(run, "no-torch")
    assert (tmp_path / "r" / "manifest.json").is_file()


def test_a_report_that_was_asked_for_and_cannot_be_given_is_a_failure(steptime: Steptime, tmp_path: Path) -> None:
    run = steptime("run", "-o", tmp_path / "r.md", "--", python(), "-c", "pass")
    assert run.returncode == 1
    assert not (tmp_path / "r.md").exists()


def test_a_job_that_takes_no_step_is_reported_so(steptime: Steptime) -> None:
    pytest.importorskip("torch")
    run = steptime("run", "--", python(), "-c", "import torch; print(torch.ones(2).sum().item())")
    assert run.returncode == 0
    assert run.stdout == "2.0\n"
    sentence(run, "no-steps")


@pytest.fixture
def train(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    return script


def test_a_job_that_fails_in_its_third_step_fails_as_without_us(
    steptime: Steptime, train: Path, tmp_path: Path
) -> None:
    run = steptime("run", "--recording", tmp_path / "r", "--", python(), train, "9", "fail")
    bare = subprocess.run([python(), train, "9", "fail"], capture_output=True, text=True, check=False)
    assert run.returncode == bare.returncode == 1
    # How far it is, the launcher says on the same stream at a time of its own.
    own = "\n".join(line for line in run.stderr.splitlines() if not line.startswith("steptime: "))
    assert bare.stderr.strip() in own, "the traceback is the job's own, without a frame of ours"
    sentence(run, "too-few-steps")
    assert json.loads((tmp_path / "r" / "manifest.json").read_text(encoding="utf-8"))["exit_status"] == 1


def test_a_job_too_short_for_an_account_has_not_failed(steptime: Steptime, train: Path, tmp_path: Path) -> None:
    run = steptime("run", "--recording", tmp_path / "r", "--", python(), train, "2", "end")
    assert (run.returncode, run.stdout) == (0, "trained\n")
    sentence(run, "too-few-steps")
    asked = steptime("run", "-o", tmp_path / "r.md", "--recording", tmp_path / "s", "--", python(), train, "2", "end")
    assert asked.returncode == 1


def test_a_job_that_is_killed_is_reported_and_its_recording_diagnosed(
    steptime: Steptime, train: Path, tmp_path: Path
) -> None:
    run = steptime("run", "--no-peaks", "--recording", tmp_path / "r", "--", python(), train, "10000000", "kill")
    assert run.returncode == -signal.SIGKILL
    assert re.search(r"^Step .* mean of \d+ steps", run.stderr, re.MULTILINE)
    again = steptime("diagnose", tmp_path / "r")
    assert again.returncode == 0
    assert "Step " in again.stdout


def test_a_recording_of_a_newer_version_is_refused_by_name(steptime: Steptime, train: Path, tmp_path: Path) -> None:
    steptime("run", "--no-peaks", "--quiet", "--recording", tmp_path / "r", "--", python(), train, "40", "end")
    manifest = tmp_path / "r" / "manifest.json"
    fields = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**fields, "format_version": 99}), encoding="utf-8")
    run = steptime("diagnose", tmp_path / "r")
    assert run.returncode == 1
    assert "pip install --upgrade steptime" in sentence(run, "recording-newer")


def test_force_says_why_a_recording_stays(steptime: Steptime, tmp_path: Path) -> None:
    words = ("run", "--force", "--recording", tmp_path / "r", "--", "true")
    steptime(*words)
    (tmp_path / "r" / "report.html").write_text("mine", encoding="utf-8")
    assert "contains files that are not a recording's. This run is recorded in " in steptime(*words).stderr
    assert (tmp_path / "r" / "report.html").exists()


@pytest.mark.parametrize("verb", ["run", "nan"])
@pytest.mark.parametrize("manifest", ['{"manifest_version": 3}', '{"format_version": 1}'], ids=["theirs", "ours"])
def test_force_removes_no_folder_in_which_there_is_anything_else(
    steptime: Steptime, tmp_path: Path, verb: str, manifest: str
) -> None:
    precious = tmp_path / "precious" / ("watch" if verb == "nan" else "")
    precious.mkdir(parents=True)
    for name, text in (("manifest.json", manifest), ("thesis.tex", "mine")):
        (precious / name).write_text(text, encoding="utf-8")
    run = steptime(verb, "--force", "--recording", tmp_path / "precious", "--", "true")
    assert run.returncode == (1 if verb == "nan" else 0)
    sentence(run, "recording-exists")
    assert (precious / "thesis.tex").read_text(encoding="utf-8") == "mine"
    assert (precious / "manifest.json").read_text(encoding="utf-8") == manifest


def test_a_command_that_cannot_be_started_costs_no_recording(steptime: Steptime, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "manifest.json").write_text('{"format_version": 1}', encoding="utf-8")
    sentence(steptime("run", "--force", "--recording", tmp_path / "r", "--", "no-such-program"), "command-not-found")
    assert (tmp_path / "r" / "manifest.json").is_file()


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_job_whose_recording_cannot_be_made_runs_without(
    steptime: Steptime, tmp_path: Path, force: tuple[str, ...]
) -> None:
    """In a folder of the user's, which is left alone, and below a file."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("mine", encoding="utf-8")
    for place, slug in ((precious, "recording-exists"), ("/dev/null/x", "recording-not-writable")):
        job = "import os; print('STEPTIME_PROBE' in os.environ, os.environ.get('PYTHONPATH')); raise SystemExit(4)"
        run = steptime("run", *force, "--recording", place, "--", sys.executable, "-c", job)
        assert (run.returncode, run.stdout) == (4, f"False {os.environ.get('PYTHONPATH')}\n")
        assert "The job runs without steptime" in sentence(run, slug)
    assert (precious / "thesis.tex").read_text(encoding="utf-8") == "mine"
    assert len(list(precious.iterdir())) == 1


def test_a_second_run_into_one_recording_gets_a_number(steptime: Steptime, tmp_path: Path) -> None:
    words = ("run", "--recording", tmp_path / "r", "--", "sh", "-c", "exit 3")
    assert steptime(*words).returncode == 3
    run = steptime(*words)
    assert run.returncode == 3
    assert f"This run is recorded in {tmp_path / 'r-2'}. (recording-exists)" in run.stderr
    assert json.loads((tmp_path / "r-2" / "manifest.json").read_text())["exit_status"] == 3


def test_a_probe_that_switched_itself_off_is_the_reason_for_few_steps(steptime: Steptime, tmp_path: Path) -> None:
    job = JournalBuilder()
    job.fact("note", text="switched off: OSError: no room")
    job.next(MS).forward(MS).backward(MS).step(MS)
    run = steptime("diagnose", job.write(tmp_path / "r"))
    sentence(run, "too-few-steps")
    assert "steptime was switched off: OSError: no room." in run.stderr
    assert "longer" not in run.stderr


@pytest.mark.parametrize("verb", ["diagnose", "report", "memory", "watch"])
def test_a_name_that_no_file_can_have_is_reported(steptime: Steptime, verb: str) -> None:
    run = steptime(verb, "x" * 5000)
    assert run.returncode in (1, 2)
    assert "bug" not in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [("bench", "math:sqrt"), ("bench-loader", "data.py:loader"), ("env", "--sweep")])
def test_steptime_alone_in_its_environment_asks_for_the_jobs_python(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pipx installs it: torch is in the environment of the job only."""
    from steptime.cli.main import main
    from steptime.machine import environment

    monkeypatch.setattr(environment, "_VERSION_OF_TORCH", "")
    assert main([*words]) == 1
    reported = capsys.readouterr().err
    assert reported == "steptime: No Python with torch was found. Give one with --python PATH. (python-without-torch)\n"
