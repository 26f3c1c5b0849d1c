"""The cache gives what the file gives, or nothing."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from traces import event, trace_file

from examples import examples
from steptime.arrays import Few
from steptime.errors import TraceError
from steptime.folders import NOWHERE, cache_folder
from steptime.trace import cache, entries as kept
from steptime.trace.cache import load, read_remembered, store
from steptime.trace.entries import EntryError, Stamp, make_room
from steptime.trace.reader import read
from steptime.trace.table import Trace

STAMP = Stamp("1", "/t.json", 1, 2, 3, 4, 5, "ends")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, empty; small traces are remembered, too, and files that were written just now."""
    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_SIZE", 0)
    monkeypatch.setattr(kept, "QUIET_NS", -(10**18))
    return tmp_path / "cache" / "traces"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read in earnest."""
    seen: list[Path] = []

    def counted(path: Path, *, max_size: int) -> Trace:
        seen.append(path)
        return read(path, max_size=max_size)

    monkeypatch.setattr(cache, "read", counted)
    return seen


def a_trace(path: Path, names: str = "abc") -> Path:
    """With ids beyond 32 bits, absent columns, texts, devices, and odd lanes."""
    events = [event(number, name=name, pid="Spans" if number else 3) for number, name in enumerate(names)]
    events[0]["args"] = {"correlation": 2**40, "Input Dims": [[1]], "Input type": ["float"]}
    events[1]["dur"] = -2
    return trace_file(
        path,
        events,
        baseTimeNanoseconds=2**60,
        deviceProperties=[{"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0}],
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
    )


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def assert_same(one: Trace, other: Trace) -> None:
    for table, names in cache.COLUMNS.items():
        for name in names:
            mine, theirs = (getattr(getattr(trace, table), name) for trace in (one, other))
            assert type(mine) is type(theirs)
            assert mine[:].dtype == theirs[:].dtype, name
            assert np.array_equal(mine[:], theirs[:]), name
            for part in (mine.rows, mine.values) if isinstance(mine, Few) else (mine,):
                assert not part.flags.writeable
    assert dataclasses.replace(one, events=other.events, allocations=other.allocations) == other


def test_a_second_look_sees_the_same_without_reading(folder: Path, reads: list[Path], tmp_path: Path) -> None:
    path = a_trace(tmp_path / "t.json")
    assert_same(read_remembered(path), read(path))
    assert_same(read_remembered(path), read(path))
    assert reads == [path]
    assert entries(folder)[0].stat().st_mode & 0o077 == 0, "names of a job are nobody else's business"


def test_every_real_trace_comes_back_as_it_was_read(folder: Path, reads: list[Path], shared_data: Path) -> None:
    found = sorted((shared_data / "hta").rglob("*.json.gz"))[:12]
    for path in found:
        first = read_remembered(path)
        assert_same(read_remembered(path), first)
    assert len(reads) == len(found) >= 8


def change_content(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"z"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same size and time: only the change's time tells


def replace_with_another(path: Path) -> None:
    a_trace(path.with_name("other.json"), "xyz").replace(path)


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 0))


@pytest.mark.parametrize("change", [change_content, replace_with_another, touch])
def test_a_changed_file_is_read_anew(
    folder: Path, reads: list[Path], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path)
    change(path)
    assert_same(read_remembered(path), read(path))
    assert len(reads) == 2
    assert len(entries(folder)) == 1, "the old entry of a path is replaced"


def test_another_version_reads_anew(
    folder: Path, reads: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path)
    monkeypatch.setattr(kept, "READER", "99/1")
    read_remembered(path)
    assert len(reads) == 2


def test_small_traces_fresh_files_and_no_cache_are_not_remembered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path, cache=False)
    monkeypatch.setattr(cache, "LEAST_SIZE", 10**6)
    read_remembered(path)
    monkeypatch.setattr(cache, "LEAST_SIZE", 0)
    monkeypatch.setattr(kept, "QUIET_NS", 10**12)
    read_remembered(path)
    assert entries(folder) == []


def test_no_cache_does_not_look_into_it_either(folder: Path, reads: list[Path], tmp_path: Path) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path)
    read_remembered(path, cache=False)
    assert len(reads) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_trace(tmp_path / "t.json")

    def meanwhile(path: Path, *, max_size: int) -> Trace:
        trace = read(path, max_size=max_size)
        touch(path)
        return trace

    monkeypatch.setattr(cache, "read", meanwhile)
    read_remembered(path)
    assert entries(folder) == []


def test_the_limit_of_size_holds_for_what_is_remembered(folder: Path, tmp_path: Path) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path)
    with pytest.raises(TraceError) as refused:
        read_remembered(path, max_size=100)
    assert refused.value.slug == "trace-too-large"


def test_what_cannot_be_read_is_refused_as_without_a_cache(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        read_remembered(tmp_path / "absent.json")
    assert refused.value.slug == "no-such-file"


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_damaged_entry_is_never_believed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    base = tmp_path_factory.getbasetemp() / "container"
    base.mkdir(exist_ok=True)
    trace = read(a_trace(base / "t.json"))
    whole = base / "whole"
    with whole.open("wb") as file:
        store(file, trace, STAMP)
    content = bytearray(whole.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    damaged = base / "damaged"
    damaged.write_bytes(content)
    with damaged.open("rb") as file, pytest.raises(EntryError):
        load(file, STAMP)


@pytest.mark.parametrize(
    ("column", "value"),
    [("name", 3), ("name", -1), ("track", 7), ("shapes", 1), ("shapes", -1), ("event_kind", 12), ("duration", -1)],
)
def test_numbers_that_point_nowhere_are_refused(tmp_path: Path, column: str, value: int) -> None:
    """With a valid checksum: whoever can write the file can write that, too."""
    trace = read(a_trace(tmp_path / "t.json"))
    wrong = getattr(trace.events, column).copy()
    wrong[1] = value
    forged = dataclasses.replace(trace, events=dataclasses.replace(trace.events, **{column: wrong}))
    with (tmp_path / "forged").open("wb") as file:
        store(file, forged, STAMP)
    with (tmp_path / "forged").open("rb") as file, pytest.raises(EntryError):
        load(file, STAMP)


def test_a_damaged_entry_is_replaced(folder: Path, reads: list[Path], tmp_path: Path) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path)
    entry = entries(folder)[0]
    entry.write_bytes(entry.read_bytes()[:-1])
    assert_same(read_remembered(path), read(path))
    assert_same(read_remembered(path), read(path))
    assert len(reads) == 2


def test_an_entry_of_another_user_is_not_trusted(
    folder: Path, reads: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path)
    monkeypatch.setattr(os, "getuid", lambda: entries(folder)[0].stat().st_uid + 1)
    read_remembered(path)
    assert len(reads) == 2


def test_a_folder_that_cannot_be_written_to_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LEAST_SIZE", 0)
    monkeypatch.setattr(kept, "QUIET_NS", -(10**18))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path / "file"))
    path = a_trace(tmp_path / "t.json")
    assert_same(read_remembered(path), read(path))


def test_a_full_disk_leaves_nothing_behind(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "store", fails)
    path = a_trace(tmp_path / "t.json")
    assert_same(read_remembered(path), read(path))
    assert entries(folder) == []


def fill(folder: Path, sizes: list[int]) -> list[Path]:
    """Entries of these sizes, the first used longest ago."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, size in enumerate(sizes):
        entry = folder / f"{number}.columns"
        entry.write_bytes(bytes(size))
        os.utime(entry, (number, number))
        made.append(entry)
    return made


def test_the_entries_that_were_not_used_for_longest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LARGEST_FOLDER", 1000)
    made = fill(folder, [400, 300, 200])
    assert make_room(folder, 100)
    assert entries(folder) == made
    assert make_room(folder, 450)
    assert entries(folder) == made[1:]
    assert not make_room(folder, 1001)
    assert entries(folder) == made[1:], "what cannot be kept costs nobody else's entry"


def test_an_entry_that_is_replaced_makes_its_own_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LARGEST_FOLDER", 1000)
    made = fill(folder, [600, 300])
    assert make_room(folder, 700, keep=made[0])
    assert entries(folder) == made


def test_no_more_than_a_tenth_of_the_free_disk_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    fill(folder, [])
    assert make_room(folder, 500)
    assert not make_room(folder, 501)


def test_using_an_entry_makes_it_young(folder: Path, tmp_path: Path) -> None:
    path = a_trace(tmp_path / "t.json")
    read_remembered(path)
    entry = entries(folder)[0]
    os.utime(entry, (1, 1))
    read_remembered(path)
    assert entry.stat().st_mtime > 1


def test_what_a_killed_process_left_is_swept_away(folder: Path) -> None:
    folder.mkdir(parents=True)
    old, young = folder / "a.columns.1.partial", folder / "b.columns.2.partial"
    for file in (old, young):
        file.write_bytes(b"half")
    long_ago = time.time() - 2 * 3600
    os.utime(old, (long_ago, long_ago))
    make_room(folder, 10)
    assert entries(folder) == [young]


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_CACHE_DIR", "/scratch/mine")
    assert cache_folder() == Path("/scratch/mine")
    monkeypatch.setenv("STEPTIME_CACHE_DIR", "not/absolute")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/steptime")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/steptime")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() == NOWHERE
    with pytest.raises(OSError, match="Not a directory"):
        NOWHERE.mkdir(parents=True)
