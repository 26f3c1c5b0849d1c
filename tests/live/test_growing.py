"""A recording that is read while it is written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from journals import EPOCH, MS, START, JournalBuilder

from steptime.errors import RecordingError
from steptime.journal import RECORD, Kind
from steptime.recording import growing
from steptime.recording.growing import GrowingRecording
from steptime.recording.packed import pack

TIMES = {"monotonic_ns": START, "job_cpu": 1.0, "other_cpu": 0.0, "resident_bytes": 1}


Open = Callable[[Path], GrowingRecording]


@pytest.fixture
def follow() -> Iterator[Open]:
    """Opens a recording; its files are let go at the end of the test."""
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> GrowingRecording:
            recording = GrowingRecording(path)
            stack.callback(recording.close)
            return recording

        yield opened


def steps(built: JournalBuilder, count: int) -> JournalBuilder:
    for _ in range(count):
        built.next(2 * MS).forward(3 * MS).backward(4 * MS).step(1 * MS)
    return built


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def read(recording: GrowingRecording) -> tuple[int, int]:
    """(steps so far, records that are kept), of the only process."""
    recording.read()
    (process,) = recording.processes.values()
    return process.count.steps, len(process.last_minute().intervals.start)


def test_what_is_appended_is_read_once_and_torn_records_when_they_are_whole(follow: Open, tmp_path: Path) -> None:
    built = steps(JournalBuilder(), 3)
    whole = b"".join(built.records)
    built.records = built.records[:4]
    folder = built.write(tmp_path / "r") / "process-17"
    recording = follow(tmp_path / "r")
    assert read(recording) == (1, 4)
    append(folder / "journal.bin", whole[4 * RECORD.size : 7 * RECORD.size + 5])
    assert read(recording) == (1, 7)
    assert read(recording) == (1, 7), "nothing has come"
    append(folder / "journal.bin", whole[7 * RECORD.size + 5 :])
    assert read(recording) == (3, 12)


def test_only_the_last_minute_is_kept_and_all_steps_are_counted(follow: Open, tmp_path: Path) -> None:
    built = steps(JournalBuilder(), 10_000)  # 100 s
    recording = follow(built.write(tmp_path / "r"))
    count, kept = read(recording)
    assert count == 10_000
    assert kept == pytest.approx(4 * 6000, abs=50)


def test_memory_is_bounded_whatever_is_written_in_a_minute(
    follow: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "MOST_RECORDS", 100)
    recording = follow(steps(JournalBuilder(), 500).write(tmp_path / "r"))
    assert read(recording) == (500, 100)


def test_a_journal_that_was_packed_is_counted_and_a_new_one_of_its_name_is_followed(
    follow: Open, tmp_path: Path
) -> None:
    built = steps(JournalBuilder(), 5)
    folder = built.write(tmp_path / "r") / "process-17"
    recording = follow(tmp_path / "r")
    assert read(recording)[0] == 5
    os.replace(folder / "journal.bin", folder / "other")  # noqa: PTH105
    built.records.clear()
    more = b"".join(steps(built, 2).records)
    append(folder / "other", more[: 4 * RECORD.size])  # the writer had it open
    append(folder / "journal.bin", more[4 * RECORD.size :])
    assert read(recording) == (7, 28)
    (folder / "journal.packed").write_bytes(pack((folder / "other").read_bytes()))
    recording.close()
    assert read(follow(tmp_path / "r"))[0] == 7


def test_one_garbled_time_does_not_empty_the_minute(follow: Open, tmp_path: Path) -> None:
    built = steps(JournalBuilder(), 200)
    built.record(Kind.FORWARD, START + 10**17, START + 10**17 + 5)
    assert read(follow(built.write(tmp_path / "r")))[1] >= 800


def test_facts_and_samples_come_line_by_line(follow: Open, tmp_path: Path) -> None:
    built = steps(JournalBuilder(), 2)
    folder = built.write(tmp_path / "r")
    recording = follow(folder)
    recording.read()
    fact = json.dumps({"fact": "loader", "identity": 1, "loader": 1, "dataset": "D", "batch_size": 8}).encode()
    append(folder / "process-17" / "facts.jsonl", fact[:20])
    append(folder / "telemetry.jsonl", json.dumps(TIMES).encode() + b"\nno json\n")
    recording.read()
    (process,) = recording.processes.values()
    assert process.last_minute().loaders == ()
    assert [sample.job_cpu for sample in recording.samples] == [1.0]
    append(folder / "process-17" / "facts.jsonl", fact[20:] + b"\n")
    recording.read()
    assert [loader.batch_size for loader in process.last_minute().loaders] == [8]


def test_the_end_is_seen_and_a_manifest_that_is_being_written_is_no_error(follow: Open, tmp_path: Path) -> None:
    folder = steps(JournalBuilder(), 2).write(tmp_path / "r")
    recording = follow(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text("{")
    recording.read()
    assert recording.manifest.ended_epoch_ns is None
    (folder / "manifest.json").write_text(json.dumps(manifest | {"ended_epoch_ns": EPOCH, "exit_status": 3}))
    recording.read()
    assert recording.manifest.exit_status == 3


def test_what_is_no_recording_is_refused(follow: Open, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="manifest"):
        follow(tmp_path)


def test_random_bytes_are_survived(follow: Open, tmp_path: Path) -> None:
    folder = JournalBuilder().write(tmp_path / "r")
    noise = np.random.default_rng(0).integers(0, 256, 100_001, np.uint8).tobytes()
    for name in ("process-17/journal.bin", "process-17/facts.jsonl", "telemetry.jsonl", "process-17/journal.packed"):
        append(folder / name, noise)
    recording = follow(folder)
    recording.read()
    for process in recording.processes.values():
        process.last_minute()
