"""What people do with a model in mid-training gives the same under `steptime run`, in every state of the watch: a few
operations of the zoo of benchmarks/faithful, each behind all of 61 steps. All of them:
`python -m benchmarks.faithful.run --zoo`.
"""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from preloading import python

from benchmarks.faithful import zoo
from benchmarks.faithful.run import END, START, TABLE

pytest.importorskip("torch")

JOBS = {job.name: job for job in zoo.JOBS}
OPERATIONS = {
    "copies": (
        "deepcopy by hand",
        "deepcopy with an own state",
        "shallow copy",
        "copied dict",
        "saved module with an own state",
        "saved graph module that is trained",
        "package",
        "weak references",
    ),
    "functional": ("ensemble", "function mode of the job", "tensors of an own kind", "who holds what"),
    "wrapping": ("other class", "overridden call", "wrapper with getattr", "guarded attributes", "layers come and go"),
    "scripted": ("jit trace of a method", "jit script of a copy", "jit script of backward", "symbolic trace"),
}
"""None of these has parts in which two bare runs differ."""
QUICK = {"functional", "wrapping"}
"""Copies and scripts are in test_copies.py, too."""
REACHED = {"start", "discovery", "lines", "profiled", "plain"}
"""States that a run of 61 steps comes to on any machine."""


@pytest.fixture(autouse=True)
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """How Python starts is no part of what the jobs do."""
    monkeypatch.setattr(zoo, "PYTHON", python())


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in OPERATIONS]
)
def test_what_users_do_in_mid_training_is_the_same(name: str) -> None:
    with ThreadPoolExecutor(2) as both:
        bare, watched = both.map(lambda way: zoo.seen(JOBS[name], way, OPERATIONS[name]), (zoo.BARE, zoo.WATCHED))
    assert {each for each, _, _ in bare.reported} == set(OPERATIONS[name])
    assert not [key for key in bare.reported if key[2].startswith(zoo.RAISED)]
    different = [
        key
        for key in bare.reported.keys() | watched.reported.keys()
        if bare.reported.get(key) != watched.reported.get(key)
    ]
    assert different == []
    assert bare.streams == watched.streams
    assert all(set(counts) >= REACHED for counts in watched.states.values())


@pytest.mark.slow
def test_own_module_called_steptime() -> None:
    job = JOBS["own_name"]
    with ThreadPoolExecutor(2) as both:
        bare, watched = both.map(lambda way: zoo.seen(job, way), (zoo.BARE, zoo.WATCHED))
    assert watched.reported == bare.reported
    assert watched.streams == bare.streams


@pytest.mark.slow
def test_a_job_that_profiles_its_own_steps_finds_its_own_operators() -> None:
    with ThreadPoolExecutor(2) as both:
        bare, watched = both.map(lambda way: zoo.seen(JOBS["profiled"], way), (zoo.BARE, zoo.WATCHED))
    assert watched.reported == bare.reported
    assert watched.streams["exit status"] == bare.streams["exit status"] == "0"


def run_of(reported: dict[tuple[str, int, str], str], status: int = 0) -> zoo.Run:
    return zoo.Run(reported, {"exit status": str(status)}, {"copy": Counter(plain=2)})


def test_a_difference_is_reported_with_its_first_step_and_what_varies_by_itself_is_not() -> None:
    bare = {("copy", 3, "answer"): "a", ("copy", 4, "answer"): "b", ("copy", 3, "bytes"): "c"}
    other = bare | {("copy", 3, "bytes"): "d"}
    failed = {("copy", 3, "bytes"): "e", ("copy", 4, "answer"): "b", ("copy", 3, "raised"): "TypeError: no"}
    rows = zoo.rows_of(run_of(bare), run_of(other), {zoo.WATCHED: run_of(failed, 1), zoo.CAUGHT: run_of(bare)})
    assert rows["copy"]["unstable"] == ["bytes"]
    assert rows["copy"]["differs"] == {zoo.WATCHED: {"steps": 1, "first": 3, "how": "TypeError: no"}}
    assert rows[zoo.STREAMS]["differs"] == {zoo.WATCHED: {"steps": 1, "first": 0, "how": "exit status: 1"}}
    assert rows["copy"]["states"] == {"plain": 4}
    assert zoo.differences_in({"copies": {"rows": rows}}) == 2


def test_what_was_not_run_is_reported() -> None:
    lines = zoo.tables({"lightning": {"skipped": ["lightning"]}})
    assert [line for line in lines if "Lightning" in line and line.endswith("skipped: no lightning here |")]


def test_the_table_has_its_marks_once_and_the_notebooks_cells_import_what_there_is() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert (text.count(START), text.count(END)) == (1, 1)
    cells = (zoo.OPERATIONS / "notebook_job.py").read_text(encoding="utf-8")
    (names,) = re.findall(r"^from training import (.*)$", cells, re.MULTILINE)
    training = (zoo.OPERATIONS / "training.py").read_text(encoding="utf-8")
    assert [
        each for each in names.split(", ") if not re.search(rf"^(def |class )?{each}\b", training, re.MULTILINE)
    ] == []
