"""The journal loses nothing and raises nothing, whoever appends and however the system writes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime import journal
from steptime.journal import RECORD, UNOPENED_RECORDS, Journal, Kind


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads change as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def read(path: Path) -> list[tuple[int, ...]]:
    return list(RECORD.iter_unpack(path.read_bytes()))


def test_threads_append_and_flush_at_once_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restless_threads: None
) -> None:
    monkeypatch.setattr(journal, "FLUSH_NANOSECONDS", 0)
    book = Journal()
    book.open(str(tmp_path / "journal.bin"))
    failures: list[BaseException] = []

    def write(thread: int) -> None:
        try:
            for number in range(20_000):
                book.append(int(Kind.FORWARD), 0, thread, number, number, thread * 20_000 + number)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book.close()
    assert failures == []
    records = read(tmp_path / "journal.bin")
    for thread_number in range(4):
        assert [record[3] for record in records if record[2] == thread_number] == list(range(20_000))


def test_an_append_in_the_middle_of_a_flush_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Journal()
    book.open(str(tmp_path / "journal.bin"))
    book.append(int(Kind.FORWARD), 0, 0, 1, 0, 0)
    write = os.write

    def interrupted(file: int, data: memoryview) -> int:
        book.append(int(Kind.GARBAGE), 0, 0, 2, 0, 1 << 62)  # what a collection during the flush does
        return write(file, data[:7])

    monkeypatch.setattr(os, "write", interrupted)
    book.flush()
    monkeypatch.undo()
    book.close()
    records = read(tmp_path / "journal.bin")
    assert [record[3] for record in records] == [1] + [2] * (len(records) - 1)
    assert len(records) == 1 + 4  # 24 bytes in pieces of 7 took four writes


def test_a_full_disk_is_an_os_error_and_keeps_the_journal_usable(tmp_path: Path) -> None:
    book = Journal()
    book.open("/dev/full")
    for end in (1 << 60, 1 << 61):
        with pytest.raises(OSError, match="No space left"):
            book.append(int(Kind.FORWARD), 0, 0, 1, 0, end)
        book.append(int(Kind.FORWARD), 0, 0, 1, 0, -1)


def test_without_a_file_only_the_newest_records_are_kept(tmp_path: Path) -> None:
    book = Journal()
    for number in range(5 * UNOPENED_RECORDS):
        book.append(int(Kind.FORWARD), 0, 0, number, 0, 0)
        book.flush()
    book.open(str(tmp_path / "journal.bin"))
    book.close()
    assert [record[3] for record in read(tmp_path / "journal.bin")] == list(
        range(4 * UNOPENED_RECORDS, 5 * UNOPENED_RECORDS)
    )
