"""Plug-ins: the documented example works as it is printed, and no broken one costs anybody their diagnosis."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from journals import MS, JournalBuilder
from patience import PATIENCE
from preloading import steptime_words

from steptime.advice.engine import examine
from steptime.advice.rule import Rule, rule
from steptime.advice.run_uses import StepSummary

ROOT = Path(__file__).resolve().parents[2]
BROKEN = {
    "exits": "import sys; sys.exit(3)",
    "exits-well": "import sys; sys.exit()",
    "interrupts": "raise KeyboardInterrupt",
    "own-base": "class Odd(BaseException): pass\nraise Odd('odd')",
    "fails": "assert False, 'never'",
    "recurs": "def deeper(): deeper()\ndeeper()",
    "prints": "print('hello')\nrule = 1",
}
"""Modules by the name of their entry point. None of them can be used."""


def install(folder: Path, name: str, value: str) -> None:
    """What pip leaves of a package with one entry point."""
    reported = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    reported.mkdir()
    (reported / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (reported / "entry_points.txt").write_text(f"[steptime.rules]\n{name} = {value}\n")


def steptime(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in an environment in which the packages of a folder are installed."""
    variables = {**os.environ, "PYTHONPATH": str(folder), "STEPTIME_CACHE_DIR": str(folder / "cache")}
    elsewhere = folder / "elsewhere"  # nothing is imported from the current folder
    elsewhere.mkdir(exist_ok=True)
    return subprocess.run(
        steptime_words(*words),
        cwd=elsewhere,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = JournalBuilder()
    for number in range(30):
        builder.forward(10 * MS).backward(5 * MS).step(5 * MS + 1000 * (number % 7))
    return builder.write(tmp_path / "recording")


def test_broken_plugins_are_reported_and_the_diagnosis_goes_on(tmp_path: Path, recording: Path) -> None:
    for name, source in BROKEN.items():
        module = f"plugin_{name.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(source)
        install(tmp_path, name, f"{module}:rule")
    run = steptime(tmp_path, "diagnose", str(recording), "--json", "--full")
    assert run.returncode == 0, run.stderr
    assert "hello" in run.stderr
    report = json.loads(run.stdout)
    failed = dict(report["processes"][0]["failed"])
    assert set(failed) == {f"plug-in {name}" for name in BROKEN}
    assert failed["plug-in exits"] == "plugin_exits:rule cannot be imported: SystemExit: 3"
    assert failed["plug-in own-base"] == "plugin_own_base:rule cannot be imported: plugin_own_base.Odd: odd"
    assert failed["plug-in interrupts"].endswith("KeyboardInterrupt")
    assert set(report["problems"]) >= {f"{who}: {why}" for who, why in failed.items()}
    text = steptime(tmp_path, "diagnose", str(recording)).stdout
    assert "Left out: plug-in " in text


CASE_OF_NOTHING = rule("ST991", "odd-rule")


@pytest.mark.parametrize("outcome", ["exit", "text", "another", "saving"])
def test_a_rule_that_gives_what_is_no_finding_of_its_own_costs_its_row(outcome: str) -> None:
    from advice.healthy import HEALTHY

    def odd(step: StepSummary) -> object:
        """It gives odd things

        What it means
            Nothing.

        How we know
            We wrote it.

        What helps
            Nothing.

        When to ignore it
            Always.
        """
        if outcome == "exit":
            raise SystemExit(3)
        if outcome == "text":
            return ["a finding"]
        if outcome == "another":
            from steptime.advice.rules import CATALOGUE

            return CATALOGUE[0].finding("summary", "advice")
        return made.finding("summary", "advice", 3.0)  # type: ignore[arg-type]

    made: Rule = CASE_OF_NOTHING(odd)  # type: ignore[arg-type]
    ((who, why),) = examine(HEALTHY, [made]).failed
    assert who == "ST991"
    assert why.startswith("SystemExit" if outcome == "exit" else "TypeError: ")


def test_the_documented_example_is_found_explained_and_passes_its_own_tests(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    module, tests = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    (project,) = re.findall(r"```toml\n(.+?)```", text, re.DOTALL)
    ((name, value),) = tomllib.loads(project)["project"]["entry-points"]["steptime.rules"].items()
    (tmp_path / "slow_frames.py").write_text(module)
    install(tmp_path, name, value)
    explained = steptime(tmp_path, "explain", "slow-frames")
    assert "A data frame is indexed in the training loop" in explained.stdout, explained.stderr
    (tmp_path / "test_slow_frames.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_slow_frames.py")]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "2 passed" in run.stdout, run.stdout
