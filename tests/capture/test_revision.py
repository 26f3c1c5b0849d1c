"""The commit and the dirtiness of a working tree are Git's own, in every state that people leave one in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.capture.launch import ProbeOptions, launch
from steptime.capture.revision import Inspection, commit_of, find, is_dirty

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git to compare with")

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "a@b",
}
QUIET = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, **IDENTITY, **QUIET}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a few files, committed."""
    folder = tmp_path / "job"
    (folder / "package" / "deep").mkdir(parents=True)
    for name, text in (("train.py", "print(1)\n"), ("package/model.py", "x = 1\n"), ("package/deep/empty.py", "")):
        (folder / name).write_text(text)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link.py").symlink_to("train.py")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def says_git(folder: Path) -> bool:
    """What Git says, without refreshing its index: that would help us."""
    words = ("--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return bool(git(folder, *words))


def check(folder: Path, expected: bool) -> None:
    repository = find(folder)
    assert repository is not None
    assert commit_of(repository) == git(folder, "rev-parse", "HEAD")
    assert says_git(folder) is expected
    assert is_dirty(repository) is expected


def test_a_clean_tree_is_clean_from_any_of_its_folders(tree: Path) -> None:
    check(tree, False)
    check(tree / "package" / "deep", False)


def test_an_untracked_file_does_not_count(tree: Path) -> None:
    (tree / "notes.txt").write_text("x")
    check(tree, False)


def _edit(tree: Path) -> None:
    (tree / "package" / "model.py").write_text("x = 23\n")


def _edit_same_size(tree: Path) -> None:
    before = (tree / "train.py").stat()
    (tree / "train.py").write_text("print(2)\n")
    os.utime(tree / "train.py", ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def _fill(tree: Path) -> None:
    (tree / "package" / "deep" / "empty.py").write_text("y = 1\n")


def _delete(tree: Path) -> None:
    (tree / "train.py").unlink()


def _make_executable(tree: Path) -> None:
    (tree / "train.py").chmod(0o755)


def _relink(tree: Path) -> None:
    (tree / "link.py").unlink()
    (tree / "link.py").symlink_to("package/model.py")


def _stage(tree: Path) -> None:
    _edit(tree)
    git(tree, "add", ".")


def _stage_a_new_file(tree: Path) -> None:
    (tree / "new.py").write_text("z = 1\n")
    git(tree, "add", "new.py")


def _stage_and_edit(tree: Path) -> None:
    _stage(tree)
    (tree / "train.py").write_text("print(3)\n")


def _conflict(tree: Path) -> None:
    git(tree, "checkout", "-q", "-b", "other")
    (tree / "train.py").write_text("print('other')\n")
    git(tree, "commit", "-q", "-am", "other")
    git(tree, "checkout", "-q", "main")
    (tree / "train.py").write_text("print('main')\n")
    git(tree, "commit", "-q", "-am", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(tree, "merge", "other")


@pytest.mark.parametrize(
    "change",
    [_edit, _edit_same_size, _fill, _delete, _make_executable, _relink, _stage_and_edit, _conflict],
)
@pytest.mark.parametrize("version", ["2", "4"])
def test_a_changed_tree_is_dirty(tree: Path, change: Callable[[Path], None], version: str) -> None:
    git(tree, "update-index", "--index-version", version)
    change(tree)
    check(tree, True)


def _touch(tree: Path) -> None:
    os.utime(tree / "train.py", (1, 1))


def _commit(tree: Path) -> None:
    _stage(tree)
    git(tree, "commit", "-q", "-m", "second")


def _edit_and_back(tree: Path) -> None:
    _edit(tree)
    git(tree, "checkout", "-q", "package/model.py")


def _stage_and_back(tree: Path) -> None:
    _stage(tree)
    git(tree, "reset", "-q", "--hard")


def _pack(tree: Path) -> None:
    git(tree, "gc", "-q")


def _detach(tree: Path) -> None:
    git(tree, "checkout", "-q", "--detach")


def _ignore_modes(tree: Path) -> None:
    git(tree, "config", "core.fileMode", "false")
    (tree / "train.py").chmod(0o755)


@pytest.mark.parametrize(
    "change",
    [_touch, _commit, _edit_and_back, _stage_and_back, _pack, _detach, _ignore_modes],
)
@pytest.mark.parametrize("version", ["2", "4"])
def test_a_tree_that_holds_its_commit_is_clean(tree: Path, change: Callable[[Path], None], version: str) -> None:
    git(tree, "update-index", "--index-version", version)
    change(tree)
    check(tree, False)


@pytest.mark.parametrize("change", [_stage, _stage_a_new_file])
def test_what_is_staged_may_be_more_than_the_commit(tree: Path, change: Callable[[Path], None]) -> None:
    change(tree)
    repository = find(tree)
    assert repository is not None
    assert is_dirty(repository) is None


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_was_told_to_leave_alone_does_not_count(tree: Path, flag: str) -> None:
    git(tree, "update-index", flag, "train.py")
    git(tree, "commit", "-q", "--allow-empty", "-m", "second")
    _delete(tree)
    check(tree, False)


def test_a_worktree_knows_its_own_commit(tree: Path) -> None:
    git(tree, "worktree", "add", "-q", "-b", "side", "../side")
    side = tree.parent / "side"
    (side / "train.py").write_text("print('side')\n")
    check(side, True)
    git(side, "commit", "-q", "-am", "side")
    check(side, False)
    check(tree, False)
    assert git(side, "rev-parse", "HEAD") != git(tree, "rev-parse", "HEAD")


def test_outside_of_a_repository_there_is_none(tmp_path: Path) -> None:
    assert find(tmp_path) is None


def test_before_the_first_commit_there_is_no_name(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    repository = find(tmp_path)
    assert repository is not None
    assert commit_of(repository) == ""
    assert is_dirty(repository) is None


@pytest.mark.parametrize(
    "damage", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\7", b"\xff" * 300, b"DIRC\0\0\0\4\0\0\0\1" + b"\xff" * 90]
)
def test_a_damaged_index_says_nothing(tree: Path, damage: bytes) -> None:
    (tree / ".git" / "index").write_bytes(damage)
    repository = find(tree)
    assert repository is not None
    assert is_dirty(repository) is None


@pytest.mark.parametrize(
    "head", ["", "ref: refs/heads/../../../etc/passwd", "ref: refs/heads/none", "0" * 39, "x" * 5000]
)
def test_a_damaged_head_names_no_commit(tree: Path, head: str) -> None:
    (tree / ".git" / "HEAD").write_text(head)
    repository = find(tree)
    assert repository is not None
    assert commit_of(repository) == ""


def test_an_inspection_of_a_short_job_looks_at_its_end(tree: Path) -> None:
    repository = find(tree)
    assert repository is not None
    inspection = Inspection(repository, 3600.0)
    _edit(tree)
    assert inspection.result() is True


def test_an_inspection_keeps_what_it_saw_at_the_start(tree: Path) -> None:
    repository = find(tree)
    assert repository is not None
    inspection = Inspection(repository, 0.0)
    inspection._timer.join()
    _edit(tree)
    assert inspection.result() is False


def test_a_recording_knows_the_commit_of_the_folder_that_its_job_was_started_in(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree / "package")
    for name, dirty in (("clean", False), ("edited", True)):
        launch(["true"], tmp_path / name, ProbeOptions())
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert manifest["commit"] == git(tree, "rev-parse", "HEAD")
        assert manifest["dirty"] is dirty
        _edit(tree)


def test_outside_of_a_repository_a_recording_knows_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launch(["true"], tmp_path / "recording", ProbeOptions())
    manifest = json.loads((tmp_path / "recording" / "manifest.json").read_text())
    assert (manifest["commit"], manifest["dirty"]) == ("", None)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("name", ["HEAD", "packed-refs"])
def test_a_pipe_among_gits_files_holds_no_job_up(tmp_path: Path, name: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (tmp_path / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / ".git" / name)
    repository = find(tmp_path)
    assert repository is not None
    assert commit_of(repository) == ""
