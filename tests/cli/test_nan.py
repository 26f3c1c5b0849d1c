"""`steptime nan` as a user runs it: planted faults with their lines and causes, healthy twins on which it is silent."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloading import python

from steptime.cli.main import main

pytest.importorskip("torch")

JOBS = Path(__file__).parent.parent / "nan" / "jobs"
ROOT = Path(__file__).parent.parent.parent
Steptime = Callable[..., Any]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder that the command works in, with the jobs."""
    folder = tmp_path / "work"
    folder.mkdir()
    for path in (*JOBS.glob("*.py"), *(ROOT / "examples").glob("nan_*.py")):
        shutil.copy(path, folder)
    return folder


def account_of(steptime: Steptime, *words: str) -> dict[str, Any]:
    """The account of a job that has a fault."""
    ended = steptime("nan", "-q", "--json", "-o", "account.json", "--", python(), *words)
    assert ended.returncode == 1, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout[ended.stdout.index("{") :])
    return found


def check(found: dict[str, Any], fault: str, cause: str, step: int | None, phase: str) -> None:
    """The line with the fault's name, its cause, step and phase."""
    origin = found["origin"]
    site = origin["forward_site"] or origin["site"]
    assert fault in site["text"] or f"# {fault}" in Path(site["file"]).read_text().splitlines()[site["line"] - 1]
    assert found["cause"]["name"] == cause
    assert origin["phase"] == phase
    assert step is None or found["trigger"]["step"] == step


PLANTED = [
    ("log_of_zero", "log-of-zero", 7, "forward"),
    ("division", "division-by-zero", 7, "forward"),
    ("half", "overflow", 7, "forward"),
    ("brain", "overflow-of-exponential", 7, "forward"),
    ("recurrent", "exploding-gradient", None, "forward"),
    ("too_fast", "learning-rate", 4, "forward"),
    ("unscaled", "initialisation", 1, "forward"),
    ("huge", "outlying-sample", 5, "forward"),
    ("masked", "masked-row", 7, "forward"),
    ("unselected", "division-by-zero", 7, "forward"),
    ("ignored", "all-targets-ignored", 7, "forward"),
    ("compiled", "log-of-negative", 7, "forward"),
    ("checkpointed", "infinite-derivative", 7, "backward"),
    ("scaled", "log-of-zero", 34, "forward"),
    ("optimizer_update", "update-divides-by-zero", None, "optimizer"),
    ("left", "log-of-zero", 7, "forward"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "cause", "step", "phase"), PLANTED, ids=[each[0] for each in PLANTED])
def test_a_planted_fault_is_found(
    fault: str, cause: str, step: int | None, phase: str, steptime: Steptime, job: Path
) -> None:
    found = account_of(steptime, "planted.py", fault)
    check(found, fault, cause, step, phase)
    assert (job / "account.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause", "phase"),
    [
        ("closure", "log-of-zero", "forward"),
        ("accumulated", "division-by-zero", "forward"),
        ("optimizer_in_backward", "infinite-derivative", "backward"),
    ],
)
def test_loops_of_frameworks(fault: str, cause: str, phase: str, steptime: Steptime, job: Path) -> None:
    check(account_of(steptime, "frameworks.py", fault), fault, cause, 7, phase)


def test_a_derivative_that_is_infinite_has_the_line_of_its_forward(steptime: Steptime, job: Path) -> None:
    before = {path.name: path.read_bytes() for path in job.iterdir()}
    ended = steptime("nan", "--", python(), "planted.py", "square_root")
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == [line for line in ended.stdout.splitlines() if line.startswith("step ")]
    assert len([line for line in ended.stderr.splitlines() if not line.startswith("steptime:")]) <= 25
    assert "planted.py:79" in ended.stderr
    assert "aten::div in the backward of aten::sqrt" in ended.stderr
    assert "(infinite-derivative)" in ended.stderr
    assert {path.name: path.read_bytes() for path in job.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_a_broken_sample_that_a_worker_has_read_is_named_by_its_index(steptime: Steptime, job: Path) -> None:
    found = account_of(steptime, "frameworks.py", "workers")
    assert found["cause"]["name"] == "bad-batch"
    assert found["origin"]["samples"] == [37]
    assert found["batch"]["samples_not_finite"] == [37]
    assert found["origin"]["module"] == "Network.first"
    assert found["trigger"]["step"] == 5


@pytest.mark.slow
def test_the_rank_that_made_it_is_named(steptime: Steptime, job: Path) -> None:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "distributed.py")
    found = account_of(steptime, *words)
    assert found["ranks"] == 2
    assert found["rank"] == 1
    check(found, "distributed", "infinite-derivative", 7, "backward")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "rank", "phase"),
    [
        ("nan_loss", "loss", 1, "forward"),
        ("nan_gradient", "gradient", 0, "backward"),
        ("infinite_input", "gradient", 1, "backward"),
    ],
)
def test_of_two_ranks_that_share_gradients_the_one_is_named_that_made_it(
    fault: str, kind: str, rank: int, phase: str, steptime: Steptime, job: Path
) -> None:
    """In a step whose gradients are looked at: both ranks have a sign of it, of which one is received."""
    found = account_of(steptime, "ranks.py", fault)
    assert (found["ranks"], found["rank"]) == (2, rank)
    assert (found["trigger"]["kind"], found["trigger"]["step"]) == (kind, 8)
    assert (found["origin"]["kind"], found["origin"]["phase"]) == ("operator", phase)
    site = found["origin"]["forward_site"] or found["origin"]["site"]
    assert f"# {fault}" in (job / "ranks.py").read_text().splitlines()[site["line"] - 1]
    watched = [json.loads(path.read_text()) for path in (job / "runs").glob("*/watch/process-*/numerics.json")]
    assert sorted(each["rank"] for each in watched) == [0, 1], "the rank that the other one ended has an account, too"


DOCUMENT = (ROOT / "docs" / "nan.md").read_text(encoding="utf-8")
CASES = re.findall(r"```sh\nsteptime nan -- python (examples/\S+)\n```\n+```text\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize(("script", "account"), CASES, ids=[Path(script).stem for script, _ in CASES])
def test_the_document_shows_what_is_printed(script: str, account: str, steptime: Steptime, tmp_path: Path) -> None:
    (tmp_path / "work" / "examples").mkdir(parents=True)
    shutil.copy(ROOT / script, tmp_path / "work" / script)
    ended = steptime("nan", "-q", "--", python(), script)
    assert ended.returncode == 1
    reported = ended.stderr.replace(f"{tmp_path}/work/", "").replace(python(), "python")
    assert essential(reported) == essential(account)


def essential(account: str) -> list[str]:
    """Without what rounding, and the time that a step takes, decide: ranges, rows and norms."""
    left_out = ("  from ", "  made ", "  held ", "  then ", "Gradient norm", "Overflow-skipped")
    return [line for line in account.splitlines() if not line.startswith(left_out)]


def test_the_document_has_two_cases() -> None:
    assert len(CASES) == 2


HEALTHY = ["attention_mask", "harmless_infinity", "log_of_mask", "ignored_in_part", "square_root"]


@pytest.mark.slow
@pytest.mark.parametrize("twin", HEALTHY)
def test_harmless_infinities_are_passed_over(twin: str, steptime: Steptime, job: Path) -> None:
    ended = steptime("nan", "--json", "--", python(), "healthy.py", twin)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout[ended.stdout.index("{") :])
    assert found["trigger"] is None
    assert found["steps"] == 12
    assert not list((job / "runs").glob("*/instrumented"))


def test_steps_that_a_scaler_skips_are_counted_and_no_fault(steptime: Steptime, job: Path) -> None:
    ended = steptime("nan", "--", python(), "healthy.py", "scaled")
    assert ended.returncode == 0
    assert "All losses and gradients were finite in 12 steps." in ended.stderr
    assert re.search(r"Overflow-skipped by the gradient scaler: [1-9] of 12 steps", ended.stderr)


@pytest.mark.slow
def test_a_job_that_is_let_run_on_ends_as_it_would(steptime: Steptime, job: Path) -> None:
    ended = steptime("nan", "--continue", "--no-replay", "--", python(), "planted.py", "log_of_zero")
    assert ended.returncode == 1
    assert "step 12 loss nan" in ended.stdout
    assert "in step 7" in ended.stderr
    assert not list((job / "runs").glob("*/instrumented"))


@pytest.mark.slow
def test_a_step_that_is_known_is_looked_at_without_a_watch(steptime: Steptime, job: Path) -> None:
    ended = steptime("nan", "--at", "7", "--", python(), "planted.py", "square_root")
    assert ended.returncode == 1
    assert "step 7" in ended.stderr
    assert not list((job / "runs").glob("*/watch"))


@pytest.mark.slow
def test_a_job_that_fails_by_itself_keeps_its_status(steptime: Steptime, job: Path) -> None:
    (job / "fails.py").write_text("import torch\nraise SystemExit(7)\n")
    ended = steptime("nan", "--", python(), "fails.py")
    assert ended.returncode == 7


def test_what_cannot_be_followed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = {
        ("nan",): "no-command",
        ("nan", "--at", "3", "--continue", "--", "x"): "usage",
        ("nan", "-o", "x.pdf", "--", "x"): "output-format",
        ("nan", "--", "no-such-program"): "command-not-found",
    }
    for words, slug in cases.items():
        assert main(list(words)) in (1, 2, 127)
        reported = capsys.readouterr()
        assert reported.out == ""
        assert f"({slug})" in reported.err.splitlines()[-1]
    assert not (tmp_path / "runs").exists()
