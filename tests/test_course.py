"""The course: its notebooks can be followed, its jobs have the fault that they are said to have, and can be mended."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from preloading import python
from test_docs import follow

from steptime.advice.explain import find_rule
from steptime.cli.main import main

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
    command = [python(), "-m", "steptime", *words, python(), str(COURSE / f"{lesson}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout[done.stdout.index("{") :])["processes"][0]["findings"]
    names = [each["name"] for each in found if each["weight"] == "finding" or each["name"] == FOUND[lesson]]
    assert FOUND[lesson] in names[:2]


def test_a_new_script_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    assert main(["new", str(script)]) == 0
    assert f"steptime run -- python {script}" in capsys.readouterr().err
    script.write_text("mine")
    assert main(["new", str(script)]) != 0
    assert script.read_text() == "mine", "nothing of somebody's is lost"
    assert main(["new", "--force", str(script)]) == 0
    assert main(["new", "-"]) == 0
    assert capsys.readouterr().out == script.read_text()


@pytest.mark.parametrize(
    "words",
    [
        "--no-fused --clip 1 --log-every 2",
        "--channels-last --accumulate 2",
        "--checkpointing --attention math",
        "--dtype bfloat16 --workers 1 --prefetch 3",
        "--dtype float16 --profile trace.json --steps 12",
    ],
)
def test_every_knob_turns(words: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    assert main(["new", str(script)]) == 0
    command = [python(), str(script), "--steps", "4", *words.split()]
    assert "loss " in subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert ("--profile" in words) == (tmp_path / "trace.json").exists()


@pytest.mark.slow
def test_nothing_that_a_new_script_chooses_is_found_at_fault(tmp_path: Path) -> None:
    """Findings on its loader, its optimizer and its switches; what a loaded machine does to it is not its choice."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    assert main(["new", str(script)]) == 0
    steptime = [
        python(),
        "-m",
        "steptime",
        "run",
        "--no-peaks",
        "--full",
        "--json",
        "--recording",
        str(tmp_path / "run"),
    ]
    command = [*steptime, "--", python(), str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout[done.stdout.index("{") :])["processes"][0]["findings"]
    assert [each["code"] for each in found if re.match("ST[1567]", each["code"])] == []
