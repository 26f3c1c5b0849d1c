"""The history of a folder: what is listed, when a job got slow, what is removed, and an index that may go."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from documents import text_of
from journals import EPOCH, MS, JournalBuilder
from printed import sound

from steptime.answer.json import document as as_json
from steptime.answer.text import as_text
from steptime.compare import history_index
from steptime.compare.history import Entry, History, history_of, slowed
from steptime.compare.history_answer import answer_of, answer_of_doomed, sentence_of
from steptime.compare.history_index import doomed_of, index_path, read_history
from steptime.diagnosis import diagnose_paths
from steptime.errors import RecordingError
from steptime.quantities import Estimate
from steptime.recording.inventory import COMPILE_LOGS, FILES, MARKS, PROCESS_FILES, PROCESS_FOLDERS, remove, replaceable
from steptime.recording.manifest import NAME as MANIFEST

DAY = 86_400 * 10**9
render_text = sound(lambda found: text_of(found, answer_of))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def record(
    folder: Path,
    name: str,
    step: float = 20.0,
    *,
    day: int = 0,
    commit: str = "",
    job: str = "train.py",
    steps: int = 30,
) -> Path:
    """A recording of a job whose steps take so many ms, made on some day."""
    builder = JournalBuilder()
    for number in range(steps):
        builder.forward(round(step * MS / 2)).backward(round(step * MS / 4))
        builder.step(round(step * MS / 4) + 1000 * (number % 7))
    path = builder.write(folder / name)
    manifest = json.loads((path / "manifest.json").read_text())
    started = EPOCH + day * DAY
    manifest.update(command=["python", job], started_epoch_ns=started, ended_epoch_ns=started + 10**9, commit=commit,
                    dirty=False if commit else None)  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def entry(step: float, day: int, **more: object) -> Entry:
    spent = Estimate(step * MS, step * MS * 0.995, step * MS * 1.005, 40)
    base = Entry(
        f"runs/{day:03}", "train", "python train.py", "", None, "box, cpu", "2.13", day * DAY, False, 1000, spent, 40
    )
    return replace(base, **more)  # type: ignore[arg-type]


def history(*entries: Entry) -> History:
    return history_of("runs", entries)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_recordings_are_listed_by_job_with_the_step_of_their_diagnosis(tmp_path: Path) -> None:
    first = record(tmp_path, "a", 20.0, day=1, commit="a" * 40)
    record(tmp_path, "b", 30.0, day=2)
    record(tmp_path / "deeper" / "still", "c", 20.0, day=3, job="other.py")
    found = read_history(tmp_path)
    assert [(track.job, len(track.entries)) for track in found.tracks] == [("other", 1), ("train", 2)]
    listed = found.tracks[1].entries[0]
    assert (listed.commit, listed.dirty, listed.machine) == ("a" * 40, False, "box, cpu")
    assert listed.step == diagnose_paths([str(first)]).processes[0].case.step.duration
    assert found.problems == ()


def test_what_is_no_recording_is_not_listed(tmp_path: Path) -> None:
    record(tmp_path, "a")
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "an app", "format_version": 1}')
    (tmp_path / ".hidden").mkdir()
    record(tmp_path / ".hidden", "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [Path(entry.path).name for entry in read_history(tmp_path).entries] == ["a"]


def test_a_recording_without_steps_is_listed_with_the_reason(tmp_path: Path) -> None:
    record(tmp_path, "a", steps=2)
    (listed,) = read_history(tmp_path).entries
    assert listed.step is None
    assert "too few" in listed.problem
    assert "too few" in render_text(read_history(tmp_path))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no-such-file"):
        read_history(tmp_path / "nowhere")


def test_a_recording_whose_name_is_no_unicode_is_listed_each_time(tmp_path: Path) -> None:
    record(tmp_path, "a")
    record(tmp_path, "b")
    (tmp_path / "b").rename(tmp_path / os.fsdecode(b"caf\xe9"))
    for _ in range(2):
        found = read_history(tmp_path)
        assert len(found.entries) == 2
        paths = [each["path"] for track in json.loads(as_json(found))["tracks"] for each in track["entries"]]
        assert any(path.endswith("caf\\udce9") for path in paths)
        assert render_text(found)


def test_a_damaged_recording_costs_nothing_but_itself(tmp_path: Path) -> None:
    record(tmp_path, "a")
    damaged = record(tmp_path, "b")
    (damaged / "process-17" / "journal.bin").write_bytes(b"\xff" * 1000)
    (damaged / "process-17" / "process.json").write_bytes(b"{")
    newer = record(tmp_path, "c")
    (newer / "manifest.json").write_text('{"format_version": 99}')
    found = read_history(tmp_path)
    assert {Path(entry.path).name for entry in found.entries} == {"a", "b"}
    assert len(found.problems) == 1


# -- the index -------------------------------------------------------------------------------------------------------


def test_what_the_index_knows_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "a")
    first = read_history(tmp_path)
    monkeypatch.setattr(history_index, "entry_of", lambda *_: pytest.fail("it was read again"))
    assert read_history(tmp_path) == first


def test_a_recording_that_grew_is_read_again(tmp_path: Path) -> None:
    path = record(tmp_path, "a", steps=10)
    assert read_history(tmp_path).entries[0].steady < 20
    for each in path.rglob("*"):
        if each.is_file():
            each.unlink()
    (path / "process-17").rmdir()
    record(tmp_path, "a", steps=40)
    assert read_history(tmp_path).entries[0].steady > 20


def test_a_recording_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    record(tmp_path, "a")
    record(tmp_path, "b")
    read_history(tmp_path)
    remove(tmp_path / "a")
    record(tmp_path, "c")
    assert [Path(entry.path).name for entry in read_history(tmp_path).entries] == ["b", "c"]


@pytest.mark.parametrize("damage", [b"", b"garbage", b"SQLite format 3\0" + b"\xff" * 4096, None])
def test_a_damaged_or_deleted_index_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    record(tmp_path, "a")
    first = read_history(tmp_path)
    path = index_path(tmp_path)
    assert path.is_file()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert read_history(tmp_path) == first
    assert read_history(tmp_path) == first
    assert path.read_bytes().startswith(b"SQLite format 3")


def test_an_index_cut_in_the_middle_is_made_anew(tmp_path: Path) -> None:
    for number in range(30):
        record(tmp_path, f"r{number}", steps=6)
    first = read_history(tmp_path)
    path = index_path(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"\x55" * 64 + content[len(content) // 2 + 64 :])
    assert read_history(tmp_path) == first
    path.write_bytes(content[: len(content) // 2])
    assert read_history(tmp_path) == first


def test_an_entry_of_another_version_is_read_again(tmp_path: Path) -> None:
    import sqlite3

    record(tmp_path, "a")
    first = read_history(tmp_path)
    connection = sqlite3.connect(index_path(tmp_path))
    with connection:
        connection.execute("UPDATE recordings SET entry = ?", (b'{"path": 3}',))
    connection.close()
    assert read_history(tmp_path) == first


def test_where_no_index_can_be_written_the_recordings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "a")
    monkeypatch.setenv("STEPTIME_CACHE_DIR", "/dev/null/nowhere")
    assert len(read_history(tmp_path).entries) == 1
    assert len(read_history(tmp_path).entries) == 1


# -- when did it get slow --------------------------------------------------------------------------------------------


def test_the_first_slow_recording_is_named_with_what_changed(tmp_path: Path) -> None:
    for day, step in enumerate((20.0, 20.1, 19.9, 20.0, 24.0, 24.1, 23.9)):
        record(tmp_path, f"run-{day}", step, day=day, commit=("a" if step < 22 else "b") * 40)
    found = read_history(tmp_path)
    (track,) = found.tracks
    jump = slowed(track)
    assert jump is not None
    assert (jump.at, jump.confirmed) == (4, True)
    sentence = sentence_of(track)
    assert sentence.startswith("It got slow with run-4: 20.0 ms to 24.0 ms, 20 % longer, and with it the commit")
    assert f"steptime compare {tmp_path / 'run-3'} {tmp_path / 'run-4'}" in render_text(found)


def test_noise_is_no_change_of_level() -> None:
    steps = (20.0, 20.4, 19.7, 20.2, 20.5, 19.8, 20.3)
    (track,) = history(*(entry(step, day) for day, step in enumerate(steps))).tracks
    assert track.levels == ()
    assert "shows no change over 7" in sentence_of(track)


def test_one_outlier_is_no_change_of_level() -> None:
    steps = (20.0, 20.1, 26.0, 20.0, 19.9)
    (track,) = history(*(entry(step, day) for day, step in enumerate(steps))).tracks
    assert track.levels == ()


def test_a_last_slow_run_waits_for_its_confirmation() -> None:
    (track,) = history(*(entry(step, day) for day, step in enumerate((20.0, 20.1, 26.0)))).tracks
    jump = slowed(track)
    assert jump is not None
    assert not jump.confirmed
    assert "not yet confirmed by a later run" in sentence_of(track)


def test_a_level_whose_runs_scatter_needs_more() -> None:
    noisy = (20.0, 23.0, 18.0, 22.0, 19.0, 24.0, 24.2, 23.8)
    (track,) = history(*(entry(step, day) for day, step in enumerate(noisy))).tracks
    assert track.levels == ()


def test_what_was_mended_again_is_not_slow() -> None:
    steps = (20.0, 20.0, 26.0, 26.0, 26.0, 20.0, 20.0, 20.0)
    (track,) = history(*(entry(step, day) for day, step in enumerate(steps))).tracks
    assert [jump.at for jump in track.levels] == [2, 5]
    assert slowed(track) is None
    assert sentence_of(track).startswith("It got faster with 005: 26 ms to 20 ms, 23 % shorter")


def test_other_machines_and_jobs_have_tracks_of_their_own() -> None:
    found = history(entry(20, 0), entry(60, 1, machine="other, cuda"), entry(20, 2), entry(50, 3, job="eval"))
    assert {(track.job, track.machine) for track in found.tracks} == {
        ("train", "box, cpu"), ("train", "other, cuda"), ("eval", "box, cpu")
    }  # fmt: skip
    assert all(track.levels == () for track in found.tracks)


def test_recordings_alongside_other_load_have_no_say_where_others_are_there() -> None:
    entries = [entry(20, 0), entry(20, 1), entry(40, 2, busy="other programs"), entry(41, 3, busy="x"), entry(20, 4)]
    (track,) = history(*entries).tracks
    assert len(track.reported) == 3
    assert track.levels == ()
    assert render_text(history(*entries)).count("other programs ran") == 2


def test_where_all_were_made_alongside_other_load_that_is_reported() -> None:
    entries = [entry(step, day, busy="other programs") for day, step in enumerate((20, 20, 40, 40, 40))]
    (track,) = history(*entries).tracks
    assert "It got slow with 002" in sentence_of(track)
    assert sentence_of(track).endswith("Other processes ran during 5 of them, which may be the cause.")


def test_variants_of_trials_are_in_no_trend(tmp_path: Path) -> None:
    record(tmp_path, "a", 20.0, day=1)
    record(tmp_path / "a-try" / "variants", "0-001", 5.0, day=2)
    hunt = record(tmp_path, "a-nan", 50.0, day=3) / "manifest.json"
    hunt.write_text(json.dumps({**json.loads(hunt.read_text()), "options": {"numerics": "watch"}}))
    found = read_history(tmp_path)
    assert [len(track.entries) for track in found.tracks] == [1]
    assert len(found.variants) == 2


def test_names_in_the_list_are_whole() -> None:
    entries = [entry(20 + day, day, path="runs/" + "x" * 90, commit="c" * 40, dirty=True) for day in range(9)]
    lines = render_text(history(*entries, entry(1, 99, job="j" * 90, machine="m" * 90))).splitlines()
    assert any("j" * 90 in line and "m" * 90 in line for line in lines)
    assert any("x" * 90 in line for line in lines)


# -- pruning ---------------------------------------------------------------------------------------------------------


def test_what_is_too_old_goes_then_the_oldest_until_the_others_fit() -> None:
    entries = [entry(20, day) for day in range(10)]
    now = 10 * DAY
    old = doomed_of(entries, now, older_than=7.5 * 86_400, keep_bytes=None)
    assert [each.entry.path for each in old] == ["runs/000", "runs/001", "runs/002"]
    both = doomed_of(entries, now, older_than=8.5 * 86_400, keep_bytes=3500)
    assert [each.entry.path for each in both] == [f"runs/{day:03}" for day in range(7)]
    assert [each.why for each in both] == ["old", "old", *["room"] * 5]
    assert doomed_of(entries, now, older_than=None, keep_bytes=10_000) == ()
    assert "Nothing was removed. Remove them with --yes" in as_text(answer_of_doomed(old, done=False))


def test_a_recording_under_way_stays() -> None:
    entries = [entry(20, 0, running=True), entry(20, 1)]
    assert [each.entry.path for each in doomed_of(entries, 100 * DAY, older_than=1.0, keep_bytes=0)] == ["runs/001"]


def test_a_job_that_still_writes_is_known_as_running_and_a_killed_one_is_not(tmp_path: Path) -> None:
    path = record(tmp_path, "a")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["ended_epoch_ns"] = None
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert read_history(tmp_path).entries[0].running
    long_ago = time.time() - 2 * history_index.RUNNING
    for each in path.rglob("*"):
        os.utime(each, (long_ago, long_ago))
    assert not read_history(tmp_path).entries[0].running


def test_only_what_steptime_wrote_is_removed(tmp_path: Path) -> None:
    path = record(tmp_path, "a")
    (path / "report.html").write_text("mine")
    (path / "process-notes").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (path / "process-99").symlink_to(outside)
    kept = remove(path)
    assert set(kept) == {"report.html", "process-notes", "process-99"}
    assert {each.name for each in path.iterdir()} == set(kept)
    assert (outside / "precious").read_text() == "x"


def test_a_folder_that_is_no_recording_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text('{"name": "mine"}')
    recording = record(tmp_path, "b")
    (tmp_path / "link").symlink_to(recording)
    assert remove(tmp_path / "a") == ()
    assert remove(tmp_path / "link") == ()
    assert (tmp_path / "a" / "manifest.json").is_file()
    assert (recording / "manifest.json").is_file()


def test_a_whole_recording_goes_with_its_folder(tmp_path: Path) -> None:
    path = record(tmp_path, "a")
    assert remove(path) == ()
    assert not path.exists()


def test_everything_that_the_format_lists_counts_as_steptimes() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "recording-format.md").read_text(encoding="utf-8")
    tree = text.split("```")[1]
    entries = re.findall(r"^( *)[├└]── (.+?)(?: {2,}|$)", tree, re.MULTILINE)
    names = [(bool(inside), name) for inside, entry in entries for name in entry.split(", ")]
    assert {(False, "telemetry.jsonl"), (True, "journal.bin"), (True, "trace-<n>.json[.gz]")} <= set(names)
    for inside, name in names:
        example = re.sub(r"<\w+>", "17", name).replace("[.gz]", ".gz").rstrip("/")
        folders = (PROCESS_FOLDERS, re.compile(COMPILE_LOGS))
        patterns = (PROCESS_FILES,) if inside else folders if name.endswith("/") else (FILES, MARKS)
        assert example == MANIFEST or any(pattern.fullmatch(example) for pattern in patterns), name


def test_files_of_the_users_in_the_folder_of_a_process_stay(tmp_path: Path) -> None:
    path = record(tmp_path, "a")
    (process,) = path.glob("process-*")
    shutil.copytree(process, path / "process-77")
    outside = tmp_path / "model.pt"
    outside.write_text("weights")
    (process / "trace-1.json.gz").write_bytes(b"")
    (process / "notes.txt").write_text("mine")
    (process / "trace-1.json.annotated").write_text("mine")
    (process / "plots").mkdir()
    (process / "plots" / "loss.png").write_text("mine")
    (process / "memory-1.pickle").symlink_to(outside)
    (path / "leader").write_text("a mark is empty: this is somebody else's")
    (path / "joined-tables.parquet").write_text("mine")
    before = {each for each in path.rglob("*") if each.is_file()}
    kept = {"leader", "joined-tables.parquet"}
    kept |= {f"{process.name}/{each}" for each in ("memory-1.pickle", "notes.txt", "plots", "trace-1.json.annotated")}
    assert not replaceable(path)
    assert before == {each for each in path.rglob("*") if each.is_file()}
    assert set(remove(path)) == kept
    assert {str(each.relative_to(path)) for each in path.rglob("*")} == {
        *kept,
        process.name,
        f"{process.name}/plots/loss.png",
    }
    assert outside.read_text() == "weights"
