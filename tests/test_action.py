"""The action of GitHub and the workflow of docs/ci.md: their shell steps, run as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from patience import PATIENCE
from preloading import python
from report.stored_reports import longer_by, stored, with_process

from steptime.report import json as report_json

ROOT = Path(__file__).resolve().parent.parent
yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def action() -> Any:
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with base.json, again.json, same.json and slow.json, and a `steptime` on the path."""
    for name, report in (
        ("base", stored("quiet-1")),
        ("again", stored("quiet-2")),
        ("same", stored("quiet-1")),
        ("slow run", longer_by(stored("quiet-2"), "python", 60e6)),
    ):
        (tmp_path / f"{name}.json").write_text(report_json.render(report), encoding="utf-8")
    program = tmp_path / "bin" / "steptime"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {python()} -m steptime "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return tmp_path


def run(action: Any, folder: Path, /, **inputs: str) -> tuple[int, dict[str, str], str, str]:
    """(exit status, outputs, summary, what was said) of the action's steps with these inputs and its defaults."""
    given = {name: str(spec.get("default", "")) for name, spec in action["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    output, summary = folder / "output", folder / "summary.md"
    for file in (output, summary):
        file.write_text("")
    runner = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(folder)}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    message = ""
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        outputs = dict(line.split("=", 1) for line in output.read_text(encoding="utf-8").splitlines())
        own = {
            name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda match: given[match[1]], value)
            for name, value in step["env"].items()
        }
        own = {
            name: re.sub(r"\$\{\{ steps\.[a-z]+\.outputs\.([a-z]+) \}\}", lambda match: outputs[match[1]], value)  # noqa: B023
            for name, value in own.items()
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={**os.environ, **runner, "PATH": path, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        message += done.stdout + done.stderr
        if done.returncode:
            break
    outputs = dict(line.split("=", 1) for line in output.read_text(encoding="utf-8").splitlines())
    return done.returncode, outputs, summary.read_text(encoding="utf-8"), message


def test_a_change_within_its_bounds_passes(action: Any, runs: Path) -> None:
    status, outputs, summary, message = run(
        action, runs, base="base.json", change="same.json", repeat="again.json\n", fail_on="step>30%", output="g.xml\n"
    )
    assert status == 0, message
    assert outputs["passed"] == "true"
    assert (
        json.loads(Path(outputs["json"]).read_text(encoding="utf-8"))["sentence"].split() == outputs["sentence"].split()
    )
    assert summary.startswith("# steptime: ")
    assert (runs / "g.xml").is_file()


def test_a_change_beyond_a_bound_fails_and_says_so(action: Any, runs: Path) -> None:
    status, outputs, summary, message = run(action, runs, base="base.json", change="slow run.json")
    assert status == 1
    assert outputs["passed"] == "false"
    assert "BREACHED" in message
    assert "breached" in summary


def test_the_sentence_names_the_bound_that_is_breached(action: Any, runs: Path) -> None:
    fat = stored("quiet-1")
    fat = with_process(fat, peak_bytes=2 * (fat.processes[0].peak_bytes or 0))
    (runs / "fat.json").write_text(report_json.render(fat), encoding="utf-8")
    status, outputs, _, message = run(action, runs, base="base.json", change="fat.json", fail_on="memory>10%")
    assert status == 1, message
    assert outputs["sentence"].startswith("Breached: memory>10%: memory changed by +100 % (")
    comparison = json.loads(Path(outputs["json"]).read_text(encoding="utf-8"))
    assert outputs["sentence"].endswith(" ".join(comparison["sentence"].split()))


def test_what_cannot_be_compared_fails_in_one_sentence_and_has_no_outputs(action: Any, runs: Path) -> None:
    status, outputs, _, message = run(action, runs, base="nowhere", change="same.json")
    assert (status, outputs) == (1, {})
    assert message == "steptime: No such file or directory: nowhere. Expected a recording (a folder written by " \
        "steptime run), a trace or a report. (no-such-file)\n"  # fmt: skip


def test_inputs_are_words_and_never_run(action: Any, runs: Path) -> None:
    status, _, _, _ = run(action, runs, base="$(touch stolen)", change="; touch stolen", fail_on="`touch stolen`")
    assert status != 0
    assert not (runs / "stolen").exists()


@pytest.mark.parametrize("folder", [".", "judge"])
def test_every_input_is_used_and_documented(folder: str) -> None:
    text = (ROOT / folder / "action.yml").read_text(encoding="utf-8")
    page, action = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), yaml.safe_load(text)
    for name, spec in action["inputs"].items():
        assert spec["description"]
        assert f"inputs.{name} " in text
        assert f"`{name}`" in page
    for name in action["outputs"]:
        assert f"`{name}`" in page
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"], "what a stranger writes must not become a program"


@pytest.mark.parametrize("version", ["", "steptime==0.1.0"])
@pytest.mark.parametrize("folder", [".", "judge"])
def test_an_action_installs_itself_unless_reported_otherwise(tmp_path: Path, folder: str, version: str) -> None:
    """A release may not be on any index: the runner has the action's own clone at hand."""
    program = tmp_path / "python3"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_ACTION_PATH": str(ROOT / folder)}
    step = yaml.safe_load((ROOT / folder / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"][0]["run"]
    done = subprocess.run(
        ["bash", "-ec", step], env={**environment, "INPUT_VERSION": version}, capture_output=True, text=True, check=True
    )
    *words, installed = done.stdout.splitlines()
    assert words == ["-m", "pip", "install", "--quiet"]
    assert installed == version or Path(installed).resolve() == ROOT


JOB = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(64, 64)).sum().backward()
    optimizer.step()
"""


def test_the_workflow_of_the_docs_runs(action: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    block = re.search(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "ci.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    steps = yaml.safe_load(block[1])["jobs"]["step-time"]["steps"]
    (measure,) = [step["run"] for step in steps if step.get("name") == "Measure"]
    (gate,) = [step["with"] for step in steps if "/steptime@" in step.get("uses", "")]
    assert measure.count("steptime run") == 3
    for name in ("base", "change"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(JOB)
    (tmp_path / "bin").mkdir()
    for name, words in (("steptime", [python(), "-m", "steptime"]), ("python", [python()])):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", measure], cwd=tmp_path, env=environment, check=True, timeout=PATIENCE)
    status, outputs, summary, message = run(action, tmp_path, **{name.replace("-", "_"): gate[name] for name in gate})
    assert {path.name for path in tmp_path.glob("gate.*")} == {"gate.xml", "gate.html"}, message
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot().find("testsuite")
    assert suite is not None
    assert [case.get("name") for case in suite.findall("testcase")] == ["step>5%", "memory>10%"]
    assert (status == 1) is (suite.get("failures") != "0") is (outputs["passed"] == "false")
    assert summary.startswith("# steptime: base-1 against change")


GITHUB = """#!/bin/sh
[ "$2" = --paginate ] && cat known && exit
printf '%s\\n' "$@" >>asked
"""


@pytest.mark.parametrize(
    ("known", "asked"),
    [("", "POST\nrepos/own/er/issues/7/comments\n"), pytest.param("12\n", "PATCH\n", marks=pytest.mark.slow)],
)
def test_a_change_that_breaks_the_job_is_judged_and_the_table_is_its_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str, asked: str
) -> None:
    pytest.importorskip("torch")
    for name, text in (
        ("steptime", f'#!/bin/sh\nexec {shlex.quote(python())} -m steptime "$@"\n'),
        ("gh", GITHUB),
    ):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "known").write_text(known)
    (tmp_path / "job").mkdir()
    git = ("git", "-C", str(tmp_path / "job"), "-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run([*git, "init", "-q"], check=True)
    for text in (JOB, JOB.replace("64, 64)).sum", "64, 63)).sum")):
        (tmp_path / "job" / "train.py").write_text(text.replace("range(40)", "range(4000)"))
        subprocess.run([*git, "add", "train.py"], check=True)
        subprocess.run([*git, "commit", "-qm", "change"], check=True)
    monkeypatch.setenv("GITHUB_REPOSITORY", "own/er")
    judging = yaml.safe_load((ROOT / "judge" / "action.yml").read_text(encoding="utf-8"))
    command, job = f"{python()} train.py", str(tmp_path / "job")
    status, outputs, summary, message = run(
        judging, tmp_path, command=command, base="HEAD~1", change="HEAD", folder=job, pull_request="7"
    )
    assert status == 1, message
    assert outputs.get("verdict") == "broken", message
    assert "| broken | – |" in summary
    assert asked in (tmp_path / "asked").read_text()
    comment = (tmp_path / "steptime-comment.md").read_text()
    assert comment == f"<!-- steptime judge -->\n{summary}"
