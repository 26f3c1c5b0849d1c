"""Changes that somebody made, as variants: read by git, applied to no file of the user's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from steptime.advice.fix import Promise
from steptime.errors import UsageError
from steptime.trials.candidates import (
    from_command,
    from_diff,
    from_range,
    from_revision,
    from_variables,
    from_words,
    suspicion_of,
)
from steptime.trials.trial import BASELINE

SLOW, FAST = "import time\ntime.sleep(1)\n", "import time\n"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, the second one quicker; the job lies in a folder of its own."""
    job = tmp_path / "repository" / "job"
    job.mkdir(parents=True)
    git(job, "init", "-q", "-b", "main", "..")
    (job / "train.py").write_text(SLOW)
    (job / "model.py").write_text("width = 1\n")
    git(job, "add", ".")
    git(job, "commit", "-qm", "slow")
    (job / "train.py").write_text(FAST)
    (job / "new.py").write_text("depth = 2\n")
    git(job, "add", ".")
    git(job, "commit", "-qm", "fast")
    return job


@pytest.mark.parametrize("above", [False, True], ids=["from the job's folder", "from the repository's root"])
def test_a_diff_becomes_the_files_as_they_would_be(repository: Path, tmp_path: Path, above: bool) -> None:
    diff = tmp_path / "slower.patch"
    diff.write_text(git(repository, "diff", *([] if above else ["--relative"]), "HEAD", "HEAD~1", "--", "train.py"))
    variant = from_diff(diff, repository, "diff-1")
    assert variant.sources == (("train.py", SLOW),)
    assert (repository / "train.py").read_text() == FAST
    assert (variant.label, variant.promise) == ("slower.patch", Promise.SAME_CURVE)


def test_a_diff_may_add_a_file(repository: Path, tmp_path: Path) -> None:
    diff = tmp_path / "new.patch"
    diff.write_text("--- /dev/null\n+++ b/extra.py\n@@ -0,0 +1 @@\n+depth = 3\n")
    assert from_diff(diff, repository, "diff-1").sources == (("extra.py", "depth = 3\n"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no diff at all", "bad.patch is not a unified diff, as .* writes it: [^(]+ .judge-git.$"),
        (
            "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-nothing like it\n+x\n",
            "bad.patch does not apply to the files in .*: patch failed: train.py:1. .judge-git.$",
        ),
        ("--- a/train.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-import time\n", "removes or renames train.py"),
        ("--- a/../../out.py\n+++ b/../../out.py\n@@ -0,0 +1 @@\n+x\n", "is not a path inside a folder"),
    ],
)
def test_what_cannot_be_applied_is_refused(repository: Path, tmp_path: Path, text: str, words: str) -> None:
    diff = tmp_path / "bad.patch"
    diff.write_text(text)
    with pytest.raises(UsageError, match=words):
        from_diff(diff, repository, "diff-1")
    assert not (tmp_path / "out.py").exists()


def test_a_diff_that_is_not_there_is_reported(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        from_diff(tmp_path / "absent.patch", repository, "diff-1")


def test_a_revision_is_its_files_where_they_differ_from_the_folder(repository: Path) -> None:
    assert from_revision("HEAD~1", repository, "ref-1").sources == (("train.py", SLOW),)
    (repository / "model.py").write_text("width = 2\n")  # not committed
    assert dict(from_revision("HEAD", repository, "ref-1").sources) == {"model.py": "width = 1\n"}


def test_a_picture_that_differs_keeps_nobody_from_judging_the_code(repository: Path) -> None:
    (repository / "plot.png").write_bytes(b"\x89PNG\0\xff")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "picture")
    (repository / "plot.png").write_bytes(b"\x89PNG\0\xfe")
    (repository / "train.py").write_text(SLOW)
    variant = from_revision("HEAD", repository, "ref-1")
    assert dict(variant.sources) == {"train.py": FAST}
    assert variant.label == "HEAD (without 1 binary file)"


def test_a_range_compares_its_two_ends_whatever_lies_in_the_folder(repository: Path) -> None:
    (repository / "model.py").write_text("width = 2\n")
    first, last = from_range("HEAD~1..HEAD", repository, "ref-1")
    assert first is not None
    assert first.name == BASELINE
    assert dict(first.sources) == {"train.py": SLOW, "model.py": "width = 1\n"}
    assert dict(last.sources) == {"train.py": FAST, "model.py": "width = 1\n"}


@pytest.mark.parametrize("revision", ["no-such-branch", "--output=x", ""])
def test_what_git_does_not_know_is_refused(repository: Path, revision: str) -> None:
    with pytest.raises(UsageError, match="git knows no commit"):
        from_revision(revision, repository, "ref-1")
    assert not (repository / "x").exists()


def test_a_folder_without_git_is_reported_to_use_a_diff(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Give --diff instead"):
        from_revision("HEAD", tmp_path, "ref-1")


def test_variables_words_and_commands_are_candidates() -> None:
    assert from_variables(("A=1", "B=x=y")).changes[0].arguments == (("A", "1"), ("B", "x=y"))
    assert from_words("--workers 2", ("python", "train.py"), "args-1").command == (
        "python",
        "train.py",
        "--workers",
        "2",
    )
    assert from_command("python 'other one.py'", "against-1").command == ("python", "other one.py")


def test_what_is_no_pair_and_what_no_shell_would_split_is_refused() -> None:
    with pytest.raises(UsageError, match="takes KEY=VALUE"):
        from_variables(("A",))
    for words in ("'open", ""):
        with pytest.raises(UsageError, match="--against"):
            from_command(words, "against-1")


def test_a_source_that_speaks_of_what_measures_it_is_suspicious() -> None:
    assert suspicion_of([("import torch\n", "import torch\nimport steptime.probe\n")])
    assert not suspicion_of([("# steptime run\n", "# steptime run\nprint()\n")])
