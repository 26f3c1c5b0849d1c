"""Each rule fires on its planted cases and is silent on the clean ones, traps included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.rule import Examination, Finding, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.savings import named

HERE = Path(__file__).parent
FILES = sorted((HERE / "cases").glob("*/*.json"))
LONGEST_SUMMARY = 110
NAMES = {rule.name for rule in CATALOGUE}


def read(path: Path) -> Case:
    return msgspec.json.decode(path.read_bytes(), type=Case)


def look(path: Path) -> Examination:
    examination = examine(read(path), CATALOGUE)
    assert not examination.failed
    return examination


def chosen(path: Path) -> list[Finding]:
    return [finding for finding in look(path).findings if finding.name == path.parent.name]


def identify(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_every_rule_has_a_firing_and_a_clean_case_and_no_case_lacks_its_rule() -> None:
    for kind in ("fires", "clean"):
        assert {path.parent.name for path in FILES if path.stem.startswith(kind)} == NAMES
    assert all(path.stem.startswith(("fires", "clean")) for path in FILES)


def test_the_cases_are_what_their_script_writes() -> None:
    command = [sys.executable, "-m", "advice.write_cases", "--check"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.startswith("fires")], ids=identify)
def test_a_rule_fires_first_on_its_own_fault(path: Path) -> None:
    examination = look(path)
    mine = [finding for finding in examination.findings if finding.name == path.parent.name]
    assert mine, [finding.name for finding in examination.findings]
    if mine[0].weight is Weight.FINDING:
        assert examination.findings[0].name == path.parent.name


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.startswith("clean")], ids=identify)
def test_a_rule_is_silent_on_a_clean_case(path: Path) -> None:
    assert not chosen(path)


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_what_is_reported_is_short_has_numbers_and_stays_within_its_category(path: Path) -> None:
    case = read(path)
    for finding in examine(case, CATALOGUE).findings:
        assert len(finding.summary) <= LONGEST_SUMMARY, finding.summary
        assert finding.advice.endswith(".")
        if finding.savings is None:
            assert finding.weight is not Weight.FINDING
            continue
        category = named(case.categories, finding.category)
        if category is not None:
            assert finding.savings.value <= category.duration.value
        if finding.name != "recompilation":  # the steps that compile are not among the steady ones
            assert finding.savings.value <= case.step.duration.value
        assert finding.savings.value >= 0.02 * case.step.duration.value


def test_nothing_at_all_is_found_in_a_healthy_job() -> None:
    """But for what it is made of: it computes."""
    assert [each.name for each in look(HERE / "cases" / "input-wait" / "clean.json").findings] == ["compute-share"]


def test_what_a_function_has_made_is_freed_in_the_line_that_calls_it_and_goes_with_the_call() -> None:
    (found,) = chosen(HERE / "cases" / "python-time" / "fires-with-what-its-call-frees.json")
    assert found.savings is not None
    assert found.savings.value == pytest.approx(6e6, rel=0.05)
    assert "job.py:15, called at train.py:" in found.summary


def test_of_slow_steps_with_a_line_the_part_of_the_line_is_to_be_saved_there() -> None:
    (found,) = chosen(HERE / "cases" / "periodic-steps" / "fires-with-the-part-of-a-line.json")
    assert found.savings is not None
    assert found.savings.value == pytest.approx(6e6)


def test_what_a_line_does_in_every_fourth_step_is_reported_once_and_by_what_it_does() -> None:
    path = HERE / "cases" / "list-conversion" / "fires-in-every-fourth-step.json"
    (found,) = chosen(path)
    assert "periodic-steps" not in {each.name for each in look(path).findings}
    assert any("Every 4th step" in each for each in found.evidence)
