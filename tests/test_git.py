"""Git is asked in a hostile repository, and runs nothing of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from threading import Event

import pytest

from steptime.errors import UsageError
from steptime.git import LOOK, ask_git, filtered
from steptime.launcher.revision import revision_of
from steptime.trials.candidates import from_diff, from_revision
from steptime.trials.patch import is_dirty


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A repository each of whose programs leaves a mark, two commits, and files that differ from the second one."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "data.bin").write_text("stored\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "train.py").write_text("print(2)\n")
    (folder / ".gitattributes").write_text("*.py diff=evil\n*.bin filter=evil diff=evil\n*.csv filter=evil\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "second")
    evil = tmp_path / "evil.sh"
    evil.write_text(f'#!/bin/sh\necho "$0 $@" >> {tmp_path / "ran"}\ncat\n')
    evil.chmod(0o755)
    programs = (
        "core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.command",
        "diff.evil.textconv", "diff.external", "core.pager", "pager.status", "pager.diff", "pager.config",
        "core.sshCommand", "credential.helper", "core.askPass", "gpg.program", "core.editor",
        "core.alternateRefsCommand", "alias.status",
    )  # fmt: skip
    for name in programs:
        git(folder, "config", name, f"!{evil}" if name.startswith("alias") else str(evil))
    git(folder, "config", "filter.evil.required", "true")
    git(folder, "config", "log.showSignature", "true")
    for hook in ("post-index-change", "post-checkout", "reference-transaction", "fsmonitor-watchman"):
        (folder / ".git" / "hooks" / hook).write_text(evil.read_text())
        (folder / ".git" / "hooks" / hook).chmod(0o755)
    (folder / "train.py").write_text("print(3)\n")
    (folder / "data.bin").write_text("changed\n")
    return folder


def test_nothing_of_a_repository_is_run(hostile: Path, tmp_path: Path) -> None:
    variant = from_revision("HEAD~1", hostile, "ref-1")
    assert variant.sources == (("train.py", "print(1)\n"),)
    assert "without 1 binary file" in variant.label, "what a filter keeps elsewhere is not a text of the commit's"
    (tmp_path / "change.diff").write_text("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-print(3)\n+print(4)\n")
    assert from_diff(tmp_path / "change.diff", hostile, "diff-1").sources == (("train.py", "print(4)\n"),)
    assert is_dirty(hostile / "train.py")
    revision = revision_of(hostile, Event())
    assert (len(revision.commit), revision.dirty) == (40, True)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_whether_a_filtered_file_differs_is_not_known(hostile: Path, tmp_path: Path) -> None:
    (hostile / "train.py").write_text("print(2)\n")
    assert filtered(hostile, ["train.py", "data.bin", "a b.csv"]) == {"data.bin", "a b.csv"}
    assert revision_of(hostile, Event()).dirty is None
    assert not (tmp_path / "ran").exists()


def test_another_commands_variables_do_not_count(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    for name, value in {
        "GIT_DIR": str(other / ".git"), "GIT_INDEX_FILE": str(tmp_path / "index"), "GIT_EXTERNAL_DIFF": "/bin/false",
        "GIT_WORK_TREE": str(other), "GIT_CONFIG": "/dev/null", "GIT_TRACE": str(tmp_path / "trace"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert from_revision("HEAD~1", hostile, "ref-1").sources
    assert not (tmp_path / "index").exists()
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / "ran").exists()


def test_a_filter_whose_name_could_hide_it_refuses_the_repository(hostile: Path, tmp_path: Path) -> None:
    with (hostile / ".git" / "config").open("a") as config:
        config.write(f'[filter "a=b"]\n\tclean = {tmp_path / "evil.sh"}\n')
    (hostile / ".gitattributes").write_text("*.py filter=a=b\n")
    with pytest.raises(OSError, match="cannot be used"):
        ask_git(hostile, "status")
    assert revision_of(hostile, Event()).commit == ""
    assert is_dirty(hostile / "train.py")
    with pytest.raises(UsageError):
        from_revision("HEAD", hostile, "ref-1")
    assert not (tmp_path / "ran").exists()


def test_a_partial_clone_is_not_completed(tmp_path: Path, hostile: Path) -> None:
    git(hostile, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    bare = {
        **os.environ,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "protocol.file.allow",
        "GIT_CONFIG_VALUE_0": "always",
    }
    words = ["git", "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{hostile}", str(clone)]
    if subprocess.run(words, env=bare, capture_output=True).returncode:
        pytest.skip("this git makes no partial clones")
    (tmp_path / "ran").unlink(missing_ok=True)
    git(clone, "config", "remote.origin.uploadpack", str(tmp_path / "evil.sh"))
    git(clone, "config", "protocol.file.allow", "always")
    reported = ask_git(clone, "cat-file", "blob", "HEAD:train.py")
    assert reported.returncode
    assert not (tmp_path / "ran").exists()


def test_a_git_that_starts_slowly_gets_all_of_its_input(
    tmp_path: Path, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a look at whether its answer is still wanted, and more than a pipe holds."""
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep {3 * LOOK}\nPATH="{os.environ["PATH"]}" exec git "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    paths = [f"folder/file-{number}.py" for number in range(9_999)]
    assert filtered(hostile, [*paths, "data.bin"]) == {"data.bin"}


def test_a_git_whose_answer_nobody_wants_any_more_is_ended(hostile: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ask_git(hostile, "status", over=lambda: True)
