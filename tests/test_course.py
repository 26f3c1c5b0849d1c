"""The course: its notebooks can be followed, its jobs have the fault that they are said to have, and can be mended."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from preloading import python
from test_docs import follow

from steptime.advice.explain import find_rule
from steptime.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
RUNNER = runpy.run_path(str(ROOT / "examples" / "exercises.py"))  # `examples` is a module of the tests'
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


@pytest.mark.parametrize("exercise", RUNNER["EXERCISES"])
def test_commands_of_an_exercise_can_be_followed_and_the_page_has_it(exercise: str) -> None:
    page = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    assert f"\n| {exercise} |" in page
    for quick in (True, False):
        for words in RUNNER["command_lines"](exercise, quick=quick):
            follow(words)
            for word in (each.partition(":")[0] for each in words if each.startswith("examples/")):
                assert (ROOT / word).is_file()
                assert word in page


def exercised(exercise: str, folder: Path) -> str:
    """Everything that the short form of an exercise prints."""
    pytest.importorskip("torch")
    shutil.copytree(ROOT / "examples", folder / "examples")
    command = [sys.executable, "-m", "examples.exercises", exercise, "--quick"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.mark.slow
def test_arithmetic_per_byte_is_what_the_guides_say(tmp_path: Path) -> None:
    printed = exercised("d", tmp_path)
    assert "$ steptime run --no-peaks --recording runs/bounds" in printed
    lines = (tmp_path / "runs" / "bounds" / "bounds.md").read_text(encoding="utf-8").splitlines()
    header = next(line for line in lines if line.startswith("| operator | phase"))
    place = header.split(" | ").index("FLOP/byte")
    found = {line.split(" | ")[0]: line.split(" | ")[place] for line in lines if line.startswith("| aten::")}
    assert found["| aten::clamp_min"] == "0.125", "a relu, as a processor calls it"
    assert found["| aten::mm"] == "128", "a third of the side, which is 384 in the short form"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exercise", "reported"),
    [
        ("a", ("IQR", "block.py")),
        ("b", ("examples/slow_input.py:55", "num_workers=")),
        ("c", ("bfloat16, compiled", "sqrt", "examples/small_cnn.py:34", "total_loss", "examples/small_cnn.py:58")),
        ("e", ("throughput",)),
        ("f", ("operators per step",)),
    ],
)
def test_an_exercise_shows_what_it_is_about(exercise: str, reported: tuple[str, ...], tmp_path: Path) -> None:
    printed = exercised(exercise, tmp_path)
    assert [each for each in reported if each not in printed] == []


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
        "--no-fused --clip 1 --log-every 2 --channels-last --accumulate 2 --dtype float16 --workers 1 --prefetch 3 "
        "--steps 2",
        "--checkpointing --attention math --dtype bfloat16 --profile trace.json --steps 12",
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
    weighty = [each["code"] for each in found if each["weight"] == "finding"]
    assert [code for code in weighty if not re.match("ST[89]", code)] == [], (
        "the machine's and the run's are not its own"
    )
