"""Working copies: what the job writes is private, what it only reads is shared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steptime.errors import UsageError
from steptime.trials import working_copy
from steptime.trials.working_copy import (
    NO_OUTPUTS,
    Outputs,
    differences,
    find_outputs,
    make_copy,
    offline_environment,
    outputs_outside,
    tree_of,
    write_private,
)

BEFORE, DURING = 1_000_000_000_000_000_000, 1_500_000_000_000_000_000
AFTER = 2_000_000_000_000_000_000


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    for name in ("train.py", "data/a.bin", "data/b.bin", "package/__init__.py", "out/last.pt", "out/old.pt", "log.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "out" / "mine").mkdir(parents=True)
    for path in (*folder.rglob("*"), folder):
        os.utime(path, ns=(BEFORE, BEFORE))
    for name in ("out/last.pt", "log.txt"):
        os.utime(folder / name, ns=(DURING, DURING))
    os.utime(folder / "out", ns=(DURING, DURING))
    return folder


def outputs_of(job: Path) -> Outputs:
    return find_outputs(job, BEFORE + 1, AFTER, (job / "out" / "mine",))


def test_outputs_are_what_changed_while_the_job_ran(job: Path) -> None:
    found = outputs_of(job)
    assert found.files == {Path("out/last.pt"), Path("log.txt")}
    assert found.folders == {Path("out")}


def test_writes_in_the_copy_do_not_reach_the_job(job: Path, tmp_path: Path) -> None:
    copy = make_copy(job, tmp_path / "copy", outputs_of(job), (job / "out" / "mine",))
    for name in ("out/last.pt", "out/old.pt", "out/new.pt", "log.txt", "train.py", "package/__init__.py", "fresh.txt"):
        (copy / name).write_text("from the variant")
    assert (job / "out/last.pt").read_text() == "out/last.pt"
    assert (job / "out/old.pt").read_text() == "out/old.pt"
    assert (job / "train.py").read_text() == "train.py"
    assert (job / "package/__init__.py").read_text() == "package/__init__.py"
    assert not (job / "out/new.pt").exists()
    assert not (job / "fresh.txt").exists()
    assert not (copy / "out" / "mine").exists()


def test_a_patched_source_stays_in_the_copy_though_its_folder_is_a_link(job: Path, tmp_path: Path) -> None:
    for name in ("first/train.py", "first/model.py", "first/items/a.bin"):
        path = tmp_path / "experiments" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (job / "elsewhere").symlink_to(tmp_path / "experiments")
    copy = make_copy(job, tmp_path / "copy", NO_OUTPUTS, linking=True)
    for name in ("elsewhere/first/train.py", "train.py"):
        write_private(copy, Path(name), "patched")
        assert (copy / name).read_text() == "patched"
    assert (tmp_path / "experiments/first/train.py").read_text() == "first/train.py"
    assert (job / "train.py").read_text() == "train.py"
    assert (copy / "elsewhere/first/items/a.bin").read_text() == "first/items/a.bin"
    (copy / "elsewhere/first/model.py").write_text("from the variant")
    assert (tmp_path / "experiments/first/model.py").read_text() == "first/model.py"


@pytest.mark.parametrize("path", ["/train.py", "../train.py", "data/../../train.py"])
def test_no_source_is_written_outside_of_the_copy(job: Path, tmp_path: Path, path: str) -> None:
    copy = make_copy(job, tmp_path / "copy", NO_OUTPUTS)
    with pytest.raises(ValueError, match="outside of the copy"):
        write_private(copy, Path(path), "patched")


def test_what_is_large_is_linked_where_that_is_guarded_and_nothing_is_where_it_is_not(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_copy, "LARGE", len("log.txt"))
    (job / "out" / "outside").symlink_to(tmp_path)
    (job / "own").symlink_to(job / "data")
    guarded = make_copy(job, tmp_path / "guarded", outputs_of(job), linking=True)
    assert (guarded / "data/a.bin").is_symlink()
    assert not (guarded / "out/last.pt").is_symlink()  # the job writes it
    (job / "out" / "outside").unlink()
    monkeypatch.setattr(working_copy, "clone", lambda *_: False)
    alone = make_copy(job, tmp_path / "alone", outputs_of(job))
    links = [path for path in (tmp_path / "alone").rglob("*") if path.is_symlink()]
    assert [path.resolve() for path in links] == [alone / "data"]
    assert all(path.stat().st_nlink == 1 for path in alone.rglob("*") if path.is_file())


def test_paths_that_lead_out_of_the_folder_mean_what_they_meant(tmp_path: Path) -> None:
    job = tmp_path / "project" / "jobs" / "mnist"
    for name in ("project/jobs/data/images", "project/shared.txt", "project/jobs/mnist/train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    copy = make_copy(job, tmp_path / "runs" / "copy", NO_OUTPUTS, linking=True)
    assert (copy / "../data/images").read_text() == "project/jobs/data/images"
    assert (copy / "../../shared.txt").read_text() == "project/shared.txt"
    assert (copy / "../mnist/train.py").read_text() == "project/jobs/mnist/train.py"
    assert copy.name == "mnist"


def test_a_data_set_is_a_link_unless_the_job_writes_into_it(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_copy, "DATA_FILES", 1)
    copy = make_copy(job, tmp_path / "copy", outputs_of(job), linking=True)
    assert (copy / "data").is_symlink()
    assert not (copy / "out").is_symlink()


def test_a_crowded_folder_above_the_job_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "project" / "jobs" / "mnist"
    for name in ("project/jobs/mnist/train.py", "project/jobs/data", "project/a", "project/b", "project/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(working_copy, "MOST_SIBLINGS", 2)
    copy = make_copy(job, tmp_path / "runs" / "copy", NO_OUTPUTS, linking=True)
    assert (copy / "../data").read_text() == "project/jobs/data"
    assert not (copy / "../../a").exists()


def test_too_much_to_copy_is_refused(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_copy, "MOST_BYTES", 4)
    monkeypatch.setattr(working_copy, "clone", lambda *_: False)
    with pytest.raises(UsageError, match="copy-too-large"):
        make_copy(job, tmp_path / "copy", outputs_of(job))
    monkeypatch.setattr(working_copy, "MOST_ENTRIES", 3)
    with pytest.raises(UsageError, match="folder-too-large"):
        outputs_of(job)


def test_what_changed_in_a_folder_is_named(job: Path) -> None:
    before = tree_of(job, ())
    assert differences(before, tree_of(job, ())) == ()
    (job / "log.txt").write_text("again")
    (job / "out" / "old.pt").rename(job / "out" / "older.pt")
    (job / "package" / "__init__.py").unlink()
    changed = differences(before, tree_of(job, ()))
    assert changed == tuple(job / name for name in ("log.txt", "out/old.pt", "out/older.pt", "package/__init__.py"))


def test_outputs_outside_are_places_in_the_command_that_changed_meanwhile(job: Path, tmp_path: Path) -> None:
    results, data = tmp_path / "results", tmp_path / "data"
    for path, changed in ((results / "deep" / "last.pt", DURING), (data / "a.bin", BEFORE)):
        path.parent.mkdir(parents=True)
        path.write_text("1")
        for each in (path, *path.relative_to(tmp_path).parents):
            os.utime(tmp_path / each, ns=(changed, changed))
    command = ("python", "train.py", f"--out={results}", "--data", "../data", "--log", str(job / "log.txt"))
    assert outputs_outside(command, job, BEFORE + 1, AFTER) == (results,)


def test_loggers_of_experiments_stay_offline_and_in_the_copy(tmp_path: Path) -> None:
    variables = dict(offline_environment(tmp_path / "copy"))
    assert variables["WANDB_MODE"] == "offline"
    assert variables["COMET_OFFLINE_MODE"] == "1"
    assert variables["NEPTUNE_MODE"] == "offline"
    inside = (tmp_path / "copy").as_uri()
    assert variables["MLFLOW_TRACKING_URI"].startswith(inside)
    assert variables["WANDB_DIR"] == str(tmp_path / "copy")
