"""What a variant writes lands in its private copy, also where that holds links to the user's own files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.changes.outside import (  # noqa: E402
    OUTSIDE,
    OutsideWrites,
    PrivateCopy,
)
from steptime.trials import working_copy  # noqa: E402
from steptime.trials.working_copy import NO_OUTPUTS, make_copy  # noqa: E402


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder with what it has not written while it was recorded."""
    folder = tmp_path / "home" / "user" / "job"
    (folder / "checkpoints" / "deep").mkdir(parents=True)
    for name in ("last.pt", "log.txt", "checkpoints/best.pt", "checkpoints/deep/all.pt"):
        (folder / name).write_text("the user's")
    return folder


@pytest.fixture
def place(tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the variant runs: all that is no source is a link in it, as if it were large."""
    monkeypatch.setattr(working_copy, "LARGE", 0)
    monkeypatch.setattr(working_copy, "DATA_FILES", 1)
    place = make_copy(job, tmp_path / "trial" / "copies" / "0-001-base", NO_OUTPUTS, linking=True)
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def recording(tmp_path: Path) -> str:
    (tmp_path / "trial" / "variants" / "0-001-base").mkdir(parents=True)
    return str(tmp_path / "trial" / "variants" / "0-001-base")


@pytest.mark.parametrize(
    ("event", "arguments", "act"),
    [
        ("os.truncate", ("last.pt", 0), lambda: os.truncate("last.pt", 0)),
        ("sqlite3.connect", ("log.txt",), lambda: Path("log.txt").write_text("a data base")),
        ("os.remove", ("checkpoints/best.pt", -1), lambda: Path("checkpoints/best.pt").unlink()),
        ("os.rename", ("last.pt", "checkpoints/a", -1, -1), lambda: Path("last.pt").rename("checkpoints/a")),
        ("os.mkdir", ("checkpoints/new", 511, -1), lambda: Path("checkpoints/new").mkdir()),
    ],
)
def test_whatever_a_variant_does_to_an_entry_is_done_to_its_own(
    job: Path, place: Path, recording: str, event: str, arguments: tuple[object, ...], act: Callable[[], object]
) -> None:
    notes: list[str] = []
    before = sorted(job.rglob("*"))
    watch = OutsideWrites(recording, notes.append)
    watch._heard(event, arguments)
    act()
    watch.look()
    assert (sorted(job.rglob("*")), users(job), notes) == (before, {"the user's"}, [])


def test_what_is_only_tried_is_not_reported_and_what_is_done_is(
    tmp_path: Path, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    paths = [tmp_path / name for name in ("tried", "chmod", "shell", "made")]
    for path in paths[:3]:
        path.write_text("the user's")
    notes: list[str] = []
    watch = OutsideWrites(recording, notes.append)
    watch._heard("os.remove", (str(paths[0]), -1))
    watch._heard("os.chmod", (str(paths[1]), 0o600, -1))
    watch._heard("subprocess.Popen", ("sh", ["sh", "-c", f"echo 1>>{paths[2]}; true"], None, None))
    watch._heard("os.mkdir", (str(paths[3]), 511, -1))
    paths[1].chmod(0o600)
    paths[2].write_text("more")
    paths[3].mkdir()
    watch.look()
    assert notes == [f"{OUTSIDE}{path}" for path in paths[1:]]


def users(job: Path) -> set[str]:
    return {path.read_text() for path in job.rglob("*") if path.is_file()}


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", ["last.pt", "checkpoints/best.pt", "checkpoints/deep/all.pt"])
@pytest.mark.parametrize(("mode", "expected"), [("w", "new"), ("a", "the user'snew"), ("r+", "new user's")])
def test_a_file_that_is_written_late_is_the_variants_own(
    job: Path, place: Path, recording: str, name: str, mode: str, expected: str, absolute: bool
) -> None:
    notes: list[str] = []
    path = str(place / name) if absolute else name
    OutsideWrites(recording, notes.append)._heard("open", (path, mode, os.O_WRONLY))
    with Path(path).open(mode) as file:
        file.write("new")
    assert Path(path).read_text() == expected
    assert users(job) == {"the user's"}
    assert (place / "checkpoints" / "deep" / "all.pt").exists()
    assert notes == []


def test_a_new_file_in_a_folder_that_is_a_link_is_the_variants_own(job: Path, place: Path, recording: str) -> None:
    OutsideWrites(recording, lambda text: None)._heard("open", ("checkpoints/new.pt", "x", os.O_WRONLY))
    (place / "checkpoints" / "new.pt").write_text("variant")
    assert sorted(path.name for path in (job / "checkpoints").iterdir()) == ["best.pt", "deep"]
    assert sorted(path.name for path in (place / "checkpoints").iterdir()) == ["best.pt", "deep", "new.pt"]


def test_what_is_saved_by_torch_is_the_variants_own(job: Path, place: Path, recording: str) -> None:
    OutsideWrites(recording, lambda text: None)._wrote("last.pt", keeps=False)
    torch.save({"a": 1}, "last.pt")
    assert users(job) == {"the user's"}
    assert torch.load("last.pt") == {"a": 1}


def test_what_is_only_read_stays_a_link(place: Path, recording: str) -> None:
    OutsideWrites(recording, lambda text: None)._heard("open", ("last.pt", "r", 0))
    assert Path("last.pt").is_symlink()
    assert Path("checkpoints").is_symlink()


def test_links_of_a_job_that_runs_in_its_own_folder_are_its_own(
    tmp_path: Path, job: Path, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").write_text("shared")
    (job / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(job)
    PrivateCopy(recording).take("link", keeps=False)
    assert (job / "link").is_symlink()


def test_a_file_that_cannot_be_taken_is_reported(
    tmp_path: Path, place: Path, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", fails)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    notes: list[str] = []
    watch = OutsideWrites(recording, notes.append)
    watch._heard("open", ("log.txt", "a", os.O_WRONLY))
    watch.look()
    assert notes == []  # nothing was written yet
    Path("log.txt").write_text("variant")
    watch.look()
    watch.look()
    assert notes == [f"{OUTSIDE}{tmp_path / 'home' / 'user' / 'job' / 'log.txt'}"]
