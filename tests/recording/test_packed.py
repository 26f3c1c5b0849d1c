"""Journals that were packed when their job had ended: the same records, bounded, and damaged ones as far as they go."""

from __future__ import annotations

import json
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from journals import MS, JournalBuilder

from steptime.journal import RECORD
from steptime.launcher.supervise import LONG_JOURNAL, long_journals, pack_recording as pack_recording
from steptime.launcher.thin import pack_journals
from steptime.recording.load import load
from steptime.recording.packed import BLOCK, HEAD, MAGIC, pack, unpack

MOST = 1 << 30
TIMES = st.integers(-(2**63), 2**63 - 1)
ROWS = st.tuples(
    st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), TIMES, TIMES
)
NOBODY = 2**22 + 17
"""No process has this number: above the largest that Linux gives."""


def unpacked(packed: bytes, largest: int) -> tuple[bytes, bool]:
    """(records, whether all of it could be read)."""
    found: list[bytes] = []
    try:
        found.extend(unpack(packed, largest))
    except ValueError:
        return b"".join(found), False
    return b"".join(found), True


@given(st.lists(ROWS, max_size=50), st.binary(max_size=RECORD.size - 1))
def test_any_records_come_back_as_they_were(rows: list[tuple[int, ...]], torn: bytes) -> None:
    records = b"".join(RECORD.pack(*row) for row in rows)
    assert unpacked(pack(records + torn), MOST) == (records, True)


def test_more_than_a_block_comes_back_in_its_order() -> None:
    numbers = random.Random(3)
    records = b"".join(
        RECORD.pack(7, 0, 1, 2, numbers.randrange(2**40), numbers.randrange(2**40)) for _ in range(BLOCK + 3)
    )
    assert unpacked(pack(records), MOST) == (records, True)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_far_as_they_make_sense(data: bytes) -> None:
    records, _ = unpacked(MAGIC + data, MOST)
    assert len(records) % RECORD.size == 0


def test_a_bomb_makes_no_more_than_it_says_and_no_more_than_is_allowed() -> None:
    bomb = zlib.compress(bytes(1 << 26))
    assert unpacked(MAGIC + HEAD.pack(2, len(bomb)) + bomb, MOST) == (b"", False)
    assert unpacked(MAGIC + HEAD.pack(2**32 - 1, len(bomb)) + bomb, MOST) == (b"", False)
    two = pack(bytes(RECORD.size) * 3) + pack(bytes(RECORD.size) * 3)[len(MAGIC) :]
    assert unpacked(two, 4 * RECORD.size) == (bytes(RECORD.size) * 3, False)


def long_job() -> JournalBuilder:
    job = JournalBuilder()
    job.process_facts = {"pid": NOBODY, "host": os.uname().nodename}
    for _ in range(LONG_JOURNAL // (3 * RECORD.size) + 100):
        job.forward(MS).backward(2 * MS).step(MS)
    return job


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return long_job().write(tmp_path / "recording")


def test_a_long_journal_is_a_third_of_its_size_and_says_the_same(recording: Path) -> None:
    before, plain = load(recording), recording / "process-17" / "journal.bin"
    size = plain.stat().st_size
    assert pack_recording(recording) == []
    packed = plain.with_suffix(".packed")
    assert not plain.exists()
    assert packed.stat().st_size < size / 3
    after = load(recording)
    for name in ("kind", "flags", "thread", "identity", "start", "end"):
        assert (getattr(after.processes[0].intervals, name) == getattr(before.processes[0].intervals, name)).all()
    assert after.problems == ()


def test_what_is_written_behind_a_packed_journal_counts_and_what_is_there_twice_counts_once(recording: Path) -> None:
    plain = recording / "process-17" / "journal.bin"
    records = plain.read_bytes()
    count = len(load(recording).processes[0].intervals.start)
    pack_recording(recording)
    late = JournalBuilder()
    late.now += 3_000_000 * MS
    plain.write_bytes(b"".join(late.step(MS).records))
    assert len(load(recording).processes[0].intervals.start) == count + 1
    plain.write_bytes(records)
    assert len(load(recording).processes[0].intervals.start) == count


def test_the_journal_of_a_process_that_may_still_write_stays(recording: Path) -> None:
    process = recording / "process-17"
    facts = json.loads((process / "process.json").read_text())
    for change in ({"pid": os.getpid()}, {"host": "another"}):
        (process / "process.json").write_text(json.dumps({**facts, **change}))
        pack_recording(recording)
        assert (process / "journal.bin").exists()
    (process / "process.json").write_text("{")
    pack_recording(recording)
    assert (process / "journal.bin").exists()
    assert not list(process.glob("*.partial"))


def test_a_short_journal_stays_as_it_is(tmp_path: Path) -> None:
    job = JournalBuilder().forward(MS).backward(MS).step(MS)
    recording = job.write(tmp_path / "recording")
    assert list(long_journals(recording)) == []
    pack_recording(recording)
    assert (recording / "process-17" / "journal.bin").exists()


def test_a_packed_journal_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    job = long_job()
    while len(job.records) <= BLOCK:
        job.step(MS)
    recording = job.write(tmp_path / "recording")
    pack_recording(recording)
    packed = recording / "process-17" / "journal.packed"
    packed.write_bytes(packed.read_bytes()[:-5])
    found = load(recording)
    assert len(found.processes[0].intervals.start) == BLOCK
    assert found.problems == ("process-17/journal.packed is damaged; steptime read only its start.",)


def test_a_disk_without_room_leaves_the_plain_journal(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode == "xb":
            raise OSError(28, "No space left on device")
        return opened(path, mode, *more, **options)

    monkeypatch.setattr(Path, "open", full)
    pack_journals(list(long_journals(recording)))
    assert sorted(path.name for path in (recording / "process-17").glob("journal*")) == ["journal.bin"]
