"""What is refused before a job is started, and what a command means."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime.errors import CommandError, OutputError, UsageError
from steptime.launcher import command
from steptime.launcher.command import default_recording, job_name, make_recording, resolve
from steptime.launcher.launch import launch
from steptime.launcher.outcome import ProbeOptions


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_alone_is_run_by_the_python_of_the_path(folder: Path) -> None:
    (folder / "train.py").write_text("")
    words = resolve(["train.py", "--epochs", "3"])
    assert Path(words[0]).name.startswith("python")
    assert words[1:] == ("train.py", "--epochs", "3")


def test_a_script_with_an_interpreter_line_is_run_as_it_is(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert resolve(["./train.py"]) == ("./train.py",)


def test_an_executable_script_without_one_is_run_by_python(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text("print()\n")
    script.chmod(0o755)
    assert resolve(["./train.py"])[1:] == ("./train.py",)


@pytest.fixture
def nobody() -> Iterator[None]:
    """A user whom permissions hold."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.parametrize("name", ["train.py", "train"])
def test_a_command_in_a_folder_that_is_closed_to_us_is_refused(folder: Path, nobody: None, name: str) -> None:
    if os.access(folder, os.W_OK, effective_ids=True):
        (folder / "closed").mkdir(0o000)
    with pytest.raises(CommandError, match="permissions of its folders") as refusal:
        resolve([str(folder / "closed" / name)])
    assert (refusal.value.slug, refusal.value.exit_status) == ("command-not-executable", 126)


def test_any_other_command_stays_as_it_is() -> None:
    assert resolve([sys.executable, "-m", "json.tool"]) == (sys.executable, "-m", "json.tool")


@pytest.mark.parametrize(
    ("words", "slug", "status"),
    [
        ([], "no-command", 2),
        (["no-such-command-anywhere", "x"], "command-not-found", 127),
        (["./missing"], "command-not-found", 127),
        (["missing.py"], "script-not-found", 127),
        (["./notes.txt"], "command-not-executable", 126),
        (["./subfolder"], "command-not-executable", 126),
    ],
)
def test_what_cannot_be_started_is_refused_as_a_shell_would(
    folder: Path, words: list[str], slug: str, status: int
) -> None:
    (folder / "notes.txt").write_text("notes")
    (folder / "subfolder").mkdir()
    with pytest.raises((CommandError, UsageError)) as refusal:
        launch(words, folder / "recording", ProbeOptions())
    assert (refusal.value.slug, refusal.value.exit_status) == (slug, status)
    assert not (folder / "recording").exists()


def test_a_program_that_the_system_cannot_execute_leaves_no_recording(folder: Path) -> None:
    script = folder / "noise"
    script.write_bytes(b"\x00\x01\x02")
    script.chmod(0o755)
    with pytest.raises(CommandError) as refusal:
        launch(["./noise"], folder / "recording", ProbeOptions())
    assert refusal.value.exit_status == 126
    assert not (folder / "recording").exists()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "-u", "src/train.py", "--lr", "1"], "train"),
        (["torchrun", "--nproc-per-node", "2", "pretrain.py"], "pretrain"),
        (["python", "-m", "package.train"], "train"),
        (["python", "-m", "torch.distributed.run", "fit.py"], "fit"),
        (["bash", "run all.sh"], "run-all"),
        (["yolo", "train"], "yolo"),
        (["python", "-c", "pass"], "python"),
    ],
)
def test_a_recording_is_named_after_its_job(words: list[str], name: str) -> None:
    assert job_name(words) == name


def test_two_recordings_of_one_second_get_two_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")
    names = []
    for _ in range(3):
        path = default_recording(["train.py"])
        make_recording(path)
        names.append(str(path))
    assert names == [f"runs/train-20260102-030405{suffix}" for suffix in ("", "-2", "-3")]


def test_a_folder_that_holds_something_is_no_place_for_a_recording(folder: Path) -> None:
    (folder / "old").mkdir()
    (folder / "old" / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match=r"old is not empty.*recording-exists"):
        make_recording(Path("old"))
    assert [path.name for path in (folder / "old").iterdir()] == ["thesis.tex"]


def test_a_recording_that_lies_there_stays_and_the_next_one_gets_a_number(folder: Path) -> None:
    names = []
    for _ in range(3):
        made = make_recording(Path("r"), keep_earlier=True)
        names.append(made.name)
        assert [path.name for path in made.iterdir()] == [command.PROOF], "taken, and not begun"
    (folder / "r" / command.PROOF).rename(folder / "r" / "manifest.json")
    (folder / "r" / "manifest.json").write_text('{"format_version": 1}')
    names.append(make_recording(Path("r"), keep_earlier=True).name)
    assert names == ["r", "r-2", "r-3", "r-4"]


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_job_starts(folder: Path) -> None:
    (folder / "file").write_text("")
    marker = folder / "started"
    with pytest.raises(OutputError) as refusal:
        launch([sys.executable, "-c", f"open({str(marker)!r}, 'w')"], Path("file/recording"), ProbeOptions())
    assert refusal.value.slug == "recording-not-writable"
    assert not marker.exists()


def test_a_full_disk_is_refused_before_the_job_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 100, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(OutputError) as refusal:
        make_recording(Path("recording"))
    assert (refusal.value.slug, refusal.value.exit_status) == ("no-room", 1)
    assert list(folder.iterdir()) == [], "no empty folder is left"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_write_that_finds_no_room_is_refused_as_well(folder: Path) -> None:
    (folder / "recording").mkdir()
    (folder / "recording" / "manifest.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space") as failure:
        command.prove_room(folder / "recording")
    assert failure.value.errno == errno.ENOSPC
