"""`steptime judge`: candidates that are broken or train something else are told as that, in a contained copy."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

import pytest
from preloading import python

from steptime.cli.main import main

pytest.importorskip("torch")

TRAINING = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4000):
    x = torch.randn(16, 64)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MODEL = "torch.nn.Linear(64, 64), torch.nn.ReLU()"


def diff(old: str, new: str) -> str:
    """As `git diff` would write it."""
    after = TRAINING.replace(old, new)
    lines = difflib.unified_diff(TRAINING.splitlines(True), after.splitlines(True), "a/train.py", "b/train.py")
    return "".join(lines)


BROKEN = diff(MODEL, MODEL.replace("64)", "63)"))
FROZEN = diff("optimizer =", "model[0].requires_grad_(False)\noptimizer =")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, text in (("train.py", TRAINING), ("broken.patch", BROKEN), ("frozen.patch", FROZEN)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_broken_candidate_and_one_that_trains_less_are_reported_apart(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--diff", "broken.patch", "--diff", "frozen.patch", "-o", "verdicts.json"]
    assert main(["judge", "-q", "--budget", "4m", *words, "--", python(), "train.py"]) == 1
    document = json.loads((job / "verdicts.json").read_text())
    assert [each["verdict"] for each in document["candidates"]] == ["broken", "different training"]
    assert "mat1 and mat2 shapes cannot be multiplied" in document["candidates"][0]["sentences"][0]
    assert "The gradient of 0.bias and 1 more is zero or missing" in document["candidates"][1]["sentences"][0]
    assert (job / "train.py").read_text() == TRAINING
    printed = capsys.readouterr().out
    assert "broken.patch" in printed
    assert "different training" in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Nothing to judge: give --diff, --ref, --env, --args or --against."),
        (("--diff", "absent.patch"), "No such file: absent.patch"),
        (("--env", "A"), "--env takes KEY=VALUE"),
        (("--env", "A=1", "--metric", "rate: ("), "is not a regular expression"),
        (("--env", "A=1", "--metric", "rate"), "has no group"),
        (("--env", "A=1", "--lower-is-better"), "needs --metric"),
        (("--env", "A=1", "--until-loss", "nan"), "is not a valid number"),
        (("--env", "A=1", "--until-loss", "1", "--metric", "(.)"), "exclude each other"),
        (("--ref", "main"), "is not in a Git repository"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_the_job_is_run(
    job: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert main(["judge", *words, "--", sys.executable, "train.py"]) == 2
    assert sentence in capsys.readouterr().err
    assert not (job / "runs").exists()


PRINTING = """\
import os, sys
print("cost: 9")
print("cost:", os.environ.get("COST", 4))
print("cost: 7", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "verdicts", "status"),
    [
        (("--lower-is-better",), ["slower", "faster", "broken"], 1),
        pytest.param((), ["faster", "slower", "broken"], 1, marks=pytest.mark.slow),
    ],
)
def test_a_script_without_steps_is_judged_by_the_number_that_it_prints(
    job: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], verdicts: list[str], status: int
) -> None:
    for name, text in (("print.py", PRINTING), ("half.py", "print('cost: 2')"), ("mute.py", "import sys")):
        (job / name).write_text(text)
    others = [word for name in ("half.py", "mute.py") for word in ("--against", f"{sys.executable} {name}")]
    given = ["--metric", r"cost: (\d+)", *words, "--env", "COST=8", *others, "-o", "verdicts.json", "-o", "table.md"]
    assert main(["judge", "-q", "--budget", "2m", *given, "--", sys.executable, "print.py"]) == status
    document = json.loads((job / "verdicts.json").read_text())
    assert [each["verdict"] for each in document["candidates"]] == verdicts
    assert document["metric"] == {"pattern": r"cost: (\d+)", "lower_is_better": bool(words), "value": 4.0}
    assert document["candidates"][1]["speed_up"]["value"] == pytest.approx(2.0 if words else 0.5)
    assert "matches nothing in its standard output" in document["candidates"][2]["sentences"][0]
    assert "Training was not judged" in capsys.readouterr().out
    assert "mute.py" in (job / "table.md").read_text(), "both files that were asked for"


def test_a_job_that_does_not_print_its_number_is_not_judged(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "print.py").write_text(PRINTING)
    given = ["--metric", "rate: (.+)", "--env", "COST=8", "--", sys.executable, "print.py"]
    assert main(["judge", "-q", *given]) == 1
    assert "--metric 'rate: (.+)' matches nothing in its standard output" in capsys.readouterr().err


FALLING = """\
import sys
import torch

rate, scale, steps = map(float, sys.argv[1:])
torch.manual_seed(0)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for step in range(int(steps)):
    x = torch.randn(64, 64)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() * scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_candidates_that_train_otherwise_are_judged_by_the_time_to_a_loss(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / "train.py").write_text(FALLING)
    others = ("0.01 1 1e9", "0.00001 1 1e9", "0.001 0.8 1e9", "0.0002 1 100")
    given = [word for each in others for word in ("--against", f"{python()} train.py {each}")]
    words = ["--until-loss", "1", *given, "-o", "verdicts.json", "--", python(), "train.py", "0.0002", "1", "1e9"]
    assert main(["judge", "-q", "--budget", "8m", *words]) == 1
    document = json.loads((job / "verdicts.json").read_text())
    verdicts = ["faster", "not reached", "different training", "not reached"]
    assert [each["verdict"] for each in document["candidates"]] == verdicts
    assert document["candidates"][0]["speed_up"]["low"] > 1.03
    assert document["until_loss"]["loss"] == 1.0
    assert document["until_loss"]["seconds"] > 0
    printed = capsys.readouterr().out
    assert "Compared: the time from the import of torch until the mean training loss" in printed
    assert "When it ended by itself after 100 steps" in printed


def test_a_job_that_never_reaches_the_loss_is_not_judged_by_it(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "train.py").write_text(FALLING)
    words = ["--until-loss", "1", "--env", "A=1", "--", python(), "train.py", "0.0002", "1", "60"]
    assert main(["judge", "-q", "--budget", "4m", *words]) == 1
    assert "The unchanged job did not reach a mean loss of 1. When it ended by itself after 60 steps" in (
        capsys.readouterr().err
    )


OTHERWISE = """\
import sys
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
inputs, weights = torch.randn(4000, 32), torch.randn(32, 1)
data = TensorDataset(inputs, inputs @ weights)
held_out = DataLoader(TensorDataset(inputs[:500], inputs[:500] @ weights), 100)
model = torch.nn.Linear(32, 1)
if "less data" in sys.argv:
    data = Subset(data, range(200))
if "trained before" in sys.argv:
    model.weight.data.copy_(weights.T * 0.9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
for epoch in range(1000):
    for step, (x, y) in enumerate(DataLoader(data, 32, shuffle=True)):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            with torch.no_grad():
                for batch, _ in held_out:
                    model(batch)
                    if "less evaluated" in sys.argv:
                        break
"""


@pytest.mark.slow
def test_a_loss_that_is_reached_by_cheating_says_nothing(job: Path) -> None:
    (job / "train.py").write_text(OTHERWISE)
    cheats = ("less data", "trained before", "less evaluated")
    given = [word for each in cheats for word in ("--against", f"{python()} train.py '{each}'")]
    words = ["--until-loss", "0.5", *given, "-o", "verdicts.json", "--", python(), "train.py"]
    assert main(["judge", "-q", "--budget", "4m", *words]) == 1
    reported = json.loads((job / "verdicts.json").read_text())["candidates"]
    assert [each["verdict"] for each in reported] == ["different training", "suspicious", "suspicious"]
    reasons = ("a dataset of 200 samples", "starts from trained weights", "has 100 samples, in the unchanged job 500")
    assert all(reason in each["sentences"][0] for reason, each in zip(reasons, reported, strict=True))
