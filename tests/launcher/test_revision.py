"""The commit and the dirtiness of a working tree are Git's own, in every state that people leave one in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE

from steptime.launcher import revision
from steptime.launcher.launch import ProbeOptions, launch
from steptime.launcher.revision import Inspection, Revision

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git to compare with")

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "a@b",
}
QUIET_LOGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, **IDENTITY, **QUIET_LOGS}
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


def revision_of(folder: Path) -> Revision:
    return revision.revision_of(folder, threading.Event())


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, Git's own among them."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def check(folder: Path, expected: bool | None) -> None:
    before = everything(folder)
    assert revision_of(folder) == Revision(git(folder, "rev-parse", "HEAD"), expected)
    assert everything(folder) == before, "nothing is written, not even an index with fresher times"


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
    [_edit, _edit_same_size, _fill, _delete, _make_executable, _relink, _stage_a_new_file, _stage_and_edit, _conflict],
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


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_was_reported_to_leave_alone_does_not_count(tree: Path, flag: str) -> None:
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


def test_a_repository_of_sha_256_names_its_whole_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256")
    (tmp_path / "train.py").write_text("print(1)\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    _pack(tmp_path)
    check(tmp_path, False)
    assert len(revision_of(tmp_path).commit) == 64
    (tmp_path / "train.py").write_text("print(2)\n")
    check(tmp_path, True)


def test_whether_a_file_behind_a_filter_differs_is_left_open(tree: Path) -> None:
    """As with LFS: the working tree holds other bytes than the commit, and only a program of the repository's could
    compare them. As long as Git's index says that the file is as it was, that is known."""
    git(tree, "config", "filter.upper.clean", "tr a-z A-Z")
    git(tree, "config", "filter.upper.smudge", "tr A-Z a-z")
    (tree / ".gitattributes").write_text("*.bin filter=upper\n")
    (tree / "weights.bin").write_text("weights\n")
    os.utime(tree / "weights.bin", (1, 1))  # a file as young as the index is compared by its bytes
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "filtered")
    assert git(tree, "show", "HEAD:weights.bin") == "WEIGHTS"
    check(tree, False)
    (tree / "weights.bin").write_text("others\n")
    check(tree, None)
    (tree / "train.py").write_text("print('edited')\n")
    check(tree, True)


def test_a_submodule_counts_by_its_commit(tree: Path, tmp_path: Path) -> None:
    git(tree, "-c", "protocol.file.allow=always", "clone", "-q", str(tree), str(tmp_path / "library"))
    git(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    git(tree, "commit", "-q", "-m", "with a library")
    (tree / "library" / "train.py").write_text("print('edited')\n")
    check(tree, False)
    check(tree / "library", True)
    git(tree / "library", "commit", "-q", "-am", "further")
    check(tree, True)


def test_no_program_of_the_repositorys_is_run(tree: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    program = tree / ".git" / "program"
    program.write_text(f"#!/bin/sh\ntouch {witness}\n")
    program.chmod(0o755)
    hooks = tree / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "fsmonitor-watchman"):
        shutil.copy(program, hooks / hook)
    for name in ("core.fsmonitor", "core.pager", "pager.status", "core.editor"):
        git(tree, "config", name, str(program))
    _touch(tree)
    assert revision_of(tree).dirty is False
    assert not witness.exists()


def test_variables_that_are_about_another_repository_do_not_count(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    found = revision_of(tree)
    assert not (tmp_path / "trace").exists()
    for name in ("GIT_DIR", "GIT_TRACE"):
        monkeypatch.delenv(name)
    assert found == Revision(git(tree, "rev-parse", "HEAD"), False)


def _nothing(folder: Path) -> Path:
    return folder


def _unborn(folder: Path) -> Path:
    git(folder, "init", "-q")
    return folder


def _bare(folder: Path) -> Path:
    git(folder, "init", "-q", "--bare")
    return folder


def _somebody_elses(folder: Path) -> Path:
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    try:
        os.chown(folder, 12345, 12345)
    except PermissionError:
        pytest.skip("only root can give a folder away")
    return folder


@pytest.mark.parametrize("make", [_nothing, _unborn, _bare, _somebody_elses])
def test_where_git_refuses_nothing_is_known(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert revision_of(make(tmp_path)) == Revision()


@pytest.mark.parametrize("damage", [b"DIRC", b"DIRC\0\0\0\2\0\0\0\7", b"\xff" * 300])
def test_a_damaged_index_costs_the_dirtiness_only(tree: Path, damage: bytes) -> None:
    (tree / ".git" / "index").write_bytes(damage)
    assert revision_of(tree) == Revision(git(tree, "rev-parse", "HEAD"), None)


def test_without_git_nothing_is_known(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tree))
    assert revision_of(tree) == Revision()


@pytest.fixture
def slow_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git that never ends, nor the program that it starts; the folder gets its number, once it runs."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "git").write_text(
        f"#!/bin/sh\nsleep 1000 &\necho $! $$ >{folder}/pids.new\nmv {folder}/pids.new {folder}/pids\nwait\n"
    )
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_a_git_that_hangs_is_ended_with_all_that_it_started(slow_git: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision, "PATIENCE", 0.0)
    reported: list[Revision] = []
    inspection = Inspection(slow_git, 0.0, reported.append)
    wait_until((slow_git / "pids").exists)
    assert inspection.end() == Revision()
    pids = [int(pid) for pid in (slow_git / "pids").read_text().split()]
    wait_until(lambda: not any(runs(pid) for pid in pids))
    assert reported == []


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_an_inspection_of_a_short_job_looks_at_its_end(tree: Path) -> None:
    inspection = Inspection(tree, 3600.0, lambda _: None)
    _edit(tree)
    assert inspection.end().dirty is True


def test_an_inspection_keeps_what_it_saw_at_the_start_and_tells_it_once(tree: Path) -> None:
    reported: list[Revision] = []
    inspection = Inspection(tree, 0.0, reported.append)
    wait_until(lambda: bool(reported))
    _edit(tree)
    assert inspection.end().dirty is False
    assert [each.dirty for each in reported] == [False]


def test_a_job_does_not_wait_for_git(slow_git: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job starts and ends while Git is still at it; the manifest's other fields are there."""
    monkeypatch.setattr(revision, "PATIENCE", 0.0)
    launch(["true"], tmp_path / "recording", ProbeOptions())
    manifest = json.loads((tmp_path / "recording" / "manifest.json").read_text())
    assert (manifest["exit_status"], manifest["commit"], manifest["dirty"]) == (0, "", None)


def test_a_launcher_that_is_killed_leaves_the_commit(tree: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from steptime.launcher.launch import ProbeOptions, launch\n"
        "launch(sys.argv[2:], Path(sys.argv[1]), ProbeOptions())"
    )
    job = [sys.executable, "-c", "input()"]
    words = [sys.executable, "-c", code, str(tmp_path / "recording"), *job]
    with subprocess.Popen(words, stdin=subprocess.PIPE, cwd=tree) as launcher:
        manifest = tmp_path / "recording" / "manifest.json"
        wait_until(lambda: manifest.exists() and "commit" in json.loads(manifest.read_bytes()))
        launcher.kill()
    assert json.loads(manifest.read_bytes())["commit"] == git(tree, "rev-parse", "HEAD")


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
