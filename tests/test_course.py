"""The course: its notebooks can be followed, its jobs have the fault that they are said to have, and can be mended."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from preloading import python
from test_docs import follow

from steptime.advice.explain import find_rule

ROOT = Path(__file__).resolve().parents[1]
COURSE = ROOT / "examples" / "course"
FOUND = {
    "lesson_1_input": "input-wait",
    "lesson_2_overhead": "dispatch-loop",
    "lesson_3_python": "metrics-in-step",
    "lesson_4_bandwidth": "outside-model",
    "lesson_5_compute": "double-precision",
    "lesson_7_memory": "memory-leak",
    "lesson_8_optimizer": "single-tensor-optimizer",
}


@pytest.mark.parametrize("notebook", sorted(COURSE.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_can_be_followed_and_ends_with_a_judgement(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    for text in code:
        if not text.startswith("!"):
            compile(text, str(notebook), "exec")
            continue
        words = shlex.split(text.removeprefix("!steptime "))
        follow(words)
        assert any((COURSE / word).is_file() for word in words), text
    assert code[-1].startswith("!steptime judge --args ")


def test_the_document_names_every_lesson_and_its_rules() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert {path.name for path in COURSE.glob("*.py")} == set(re.findall(r"course/(lesson_\d_\w+\.py)\)", text))
    codes = re.findall(r"\bST\d{3}\b", text)
    assert codes
    assert all(find_rule(code) for code in codes)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", FOUND)
def test_a_lesson_has_its_fault(lesson: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ["run", "--quiet", "--no-peaks", "--json", "--full", "--recording", str(tmp_path / "r"), "--"]
    command = [sys.executable, "-m", "steptime", *words, python(), str(COURSE / f"{lesson}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout[done.stdout.index("{") :])["processes"][0]["findings"]
    names = [each["name"] for each in found if each["weight"] == "finding" or each["name"] == FOUND[lesson]]
    assert FOUND[lesson] in names[:2]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--fused", "--channels-last --accumulate 2", "--checkpointing --attention math",
                                   "--dtype bfloat16 --workers 1"])  # fmt: skip
def test_every_knob_turns(words: str) -> None:
    pytest.importorskip("torch")
    command = [python(), str(ROOT / "examples" / "knobs.py"), "--steps", "4", *words.split()]
    assert "loss " in subprocess.run(command, capture_output=True, text=True, check=True).stdout
