"""Pickles of allocators, and what pretends to be one."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import pickletools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from example_counts import examples
from memory.allocator import BATCH, Allocator, train

from steptime.errors import SnapshotError
from steptime.memory import snapshot as snapshot_module
from steptime.memory.lives import histories
from steptime.memory.snapshot import State, is_snapshot, read_snapshot
from steptime.memory.triage import triage


def written(folder: Path, value: Any, *, protocol: int = 4) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def outcome(path: Path) -> str:
    """What became of a file: "whole", "truncated", or the slug of its refusal."""
    try:
        return "truncated" if read_snapshot(path).truncated else "whole"
    except SnapshotError as error:
        return error.slug


def small() -> Allocator:
    allocator = Allocator()
    train(allocator, 3)
    return allocator


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_protocol_of_pickle_gives_the_same_columns(tmp_path: Path, protocol: int) -> None:
    allocator = small()
    snapshot = read_snapshot(written(tmp_path, allocator.snapshot(), protocol=protocol))
    assert snapshot.events.size.tolist() == [event["size"] for event in allocator.events]
    assert snapshot.events.address.tolist() == [event["addr"] for event in allocator.events]
    assert snapshot.events.time.tolist() == [event["time_us"] * 1000 for event in allocator.events]
    stacks = [[(f.file, f.line, f.function) for f in snapshot.stacks.of(s)] for s in snapshot.events.stack.tolist()]
    assert stacks == [
        [(f["filename"], f["line"], f["name"]) for f in event["frames"]] for event in allocator.events
    ]  # fmt: skip
    assert dict(snapshot.settings)["expandable_segments"] == "False"
    assert snapshot.segments.size.sum() == len(allocator.segments) * allocator.segment
    there = snapshot.blocks.state == State.ALLOCATED
    assert dict(
        zip(snapshot.blocks.address[there].tolist(), snapshot.blocks.requested[there].tolist(), strict=True)
    ) == {address: size for address, (size, _) in allocator.blocks.items()}


@pytest.mark.parametrize("name", ["medium_128_training", "medium_512_inference", "medium_512_training"])
def test_a_public_snapshot_reads_as_pickle_itself_would(shared_data: Path, name: str) -> None:
    path = shared_data / "snapshots" / f"{name}_memory_snapshot.pickle"
    snapshot, truth = read_snapshot(path), pickle.loads(path.read_bytes())
    events = truth["device_traces"][0]
    assert snapshot.events.size.tolist() == [event["size"] for event in events]
    assert snapshot.events.address.tolist() == [event["addr"] for event in events]
    for row in range(0, len(events), 97):
        found = [(f.file, f.line, f.function) for f in snapshot.stacks.of(int(snapshot.events.stack[row]))]
        assert found == [(f["filename"], f["line"], f["name"]) for f in events[row]["frames"]]
    assert snapshot.blocks.size.tolist() == [b["size"] for segment in truth["segments"] for b in segment["blocks"]]
    assert snapshot.segments.size.tolist() == [segment["total_size"] for segment in truth["segments"]]
    assert not snapshot.truncated


def test_a_history_without_frames_and_a_process_with_several_devices_read(tmp_path: Path) -> None:
    one, other = Allocator(), Allocator(device=2)
    for allocator in (one, other):
        allocator.malloc(1000, [])
    both = one.snapshot()
    both["device_traces"] = [one.events, [], other.events]
    both["segments"] += other.snapshot()["segments"]
    snapshot = read_snapshot(written(tmp_path, both))
    assert set(snapshot.events.device.tolist()) == {0, 2}
    assert set(snapshot.events.stack.tolist()) == {-1}
    assert snapshot.segments.device.tolist() == [0, 2]


def test_old_blocks_without_addresses_lie_one_behind_the_other(tmp_path: Path) -> None:
    blocks = [
        {"size": 512, "state": "active_allocated", "history": [{"frames": [BATCH[0]], "real_size": 400}]},
        {"size": 1024, "state": "inactive"},
    ]
    segment = {"device": 0, "address": 4096, "total_size": 1536, "stream": 0, "segment_type": "small", "blocks": blocks}
    snapshot = read_snapshot(written(tmp_path, [segment]))
    assert snapshot.blocks.address.tolist() == [4096, 4608]
    assert snapshot.stacks.of(int(snapshot.blocks.stack[0]))[0].line == 12


def test_json_and_gzip_give_the_same(tmp_path: Path) -> None:
    allocator = small()
    plain = read_snapshot(written(tmp_path, allocator.snapshot()))
    packed = tmp_path / "packed.pickle.gz"
    packed.write_bytes(gzip.compress(pickle.dumps(allocator.snapshot())))
    text = tmp_path / "snapshot.json"
    text.write_text(json.dumps(allocator.snapshot()), encoding="utf-8")
    for other in (read_snapshot(packed), read_snapshot(text)):
        np.testing.assert_array_equal(other.events.size, plain.events.size)
        np.testing.assert_array_equal(other.blocks.address, plain.blocks.address)
        assert other.stacks.of(int(other.events.stack[-1])) == plain.stacks.of(int(plain.events.stack[-1]))


@pytest.mark.parametrize("share", [0.4, 0.7, 0.95])
def test_a_file_that_ends_in_the_middle_is_read_as_far_as_it_goes(tmp_path: Path, share: float) -> None:
    allocator = Allocator()
    train(allocator, 600)
    whole = pickle.dumps(allocator.snapshot())
    path = tmp_path / "cut.pickle"
    path.write_bytes(whole[: int(len(whole) * share)])
    snapshot = read_snapshot(path)
    count = len(snapshot.events)
    assert snapshot.truncated
    assert 0 < count < len(allocator.events)
    assert snapshot.events.size.tolist() == [event["size"] for event in allocator.events[:count]]
    assert set(snapshot.events.device.tolist()) == {0}
    assert f"ends at event {count}" in snapshot.problems[0]
    assert count > (share - 0.1) * len(allocator.events)


@pytest.mark.usefixtures("pickles_read_here")
def test_every_cut_of_a_small_file_is_a_sentence_or_a_snapshot(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 1, layers=1)
    for protocol in (2, 4):
        whole = pickle.dumps(allocator.snapshot(), protocol=protocol)
        path = tmp_path / "cut.pickle"
        for end in range(2, len(whole), 29):
            path.write_bytes(whole[:end])
            assert outcome(path) in ("truncated", "snapshot-foreign")


def test_bytes_that_were_changed_at_random_end_in_a_sentence_or_a_snapshot(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    whole = bytearray(pickle.dumps(small().snapshot()))
    path = tmp_path / "changed.pickle"
    for _ in range(examples(100)):
        changed = bytearray(whole)
        for place in random.integers(2, len(whole), 3):
            changed[place] = int(random.integers(256))
        path.write_bytes(changed)
        assert outcome(path).startswith(("whole", "truncated", "snapshot-"))


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_nothing_that_a_stranger_asks_for_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, {"segments": [], "device_traces": [[_Evil()]]}, protocol=protocol)
    with pytest.raises(SnapshotError, match="steptime executed nothing in it") as raised:
        read_snapshot(path)
    assert raised.value.slug == "snapshot-refused"
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("name", ["GLOBAL", "INST", "EXT1"])
def test_every_way_to_name_a_class_is_refused(tmp_path: Path, name: str) -> None:
    code = next(opcode.code for opcode in pickletools.opcodes if opcode.name == name).encode("latin-1")
    path = tmp_path / "opcodes.pickle"
    path.write_bytes(b"\x80\x04}(" + code + b"os\nsystem\n" * 20)
    assert outcome(path) in ("snapshot-refused", "snapshot-damaged")


@pytest.mark.parametrize("name", ["REDUCE", "BUILD", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID"])
def test_an_opcode_that_would_call_something_finds_nothing_to_call(tmp_path: Path, name: str) -> None:
    code = next(opcode.code for opcode in pickletools.opcodes if opcode.name == name).encode("latin-1")
    path = tmp_path / "opcodes.pickle"
    for before in (b"}(", b"}}", b"})", b"}})", b"}(}"):
        path.write_bytes(b"\x80\x04" + before + code + b"x\n.")
        assert outcome(path).startswith("snapshot-")


BOMBS = {
    "depth": b"\x80\x04" + b"(" * 100_000,
    "stack": b"\x80\x04" + b"N" * 5_000_000,
    "text": b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b"x" * 100,
    "number": b"\x80\x04\x8b" + (1 << 30).to_bytes(4, "little") + b"\x01" * 100_000,
    "memo": b"\x80\x04Nr" + (0xFFFFFFF0).to_bytes(4, "little") + b".",
    "doubling": b"\x80\x04]\x94" + b"(h\x00h\x00e" * 600_000,
    "tuples": b"\x80\x04)" + b"\x85" * 1_000_000,
    "tuples-as-key": b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",
    "bytes": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"x" * 100,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_in_a_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bomb.pickle"
    path.write_bytes(BOMBS[name])
    with pytest.raises(SnapshotError) as raised:
        read_snapshot(path)
    assert str(path) in raised.value.sentence
    assert "Traceback" not in raised.value.sentence


def test_a_file_for_which_memory_does_not_suffice_says_how_much_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, {"segments": [], "device_traces": [["x"] * 100]})
    with monkeypatch.context() as patched:
        patched.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=0))
        with pytest.raises(SnapshotError, match="0 B are free") as raised:
            read_snapshot(path)
    assert raised.value.slug == "snapshot-too-large"
    assert "max_entries" in raised.value.sentence
    path = written(tmp_path, {"segments": [], "device_traces": [[{"a": number} for number in range(1_000_000)]]})
    monkeypatch.setattr(snapshot_module, "MEMORY_PER_BYTE", (0, 1))
    assert outcome(path) == "snapshot-too-large"


@pytest.mark.parametrize(
    ("content", "slug"),
    [
        (b"", "snapshot-foreign"),
        (b"hello", "snapshot-foreign"),
        (b"{]", "snapshot-foreign"),
        (pickle.dumps({"a": 1}), "snapshot-foreign"),
        (pickle.dumps([1, 2, 3]), "snapshot-foreign"),
        (b"\xff\xfe\x00", "snapshot-foreign"),
        (pickle.dumps({"segments": [1, 2]}, protocol=0), "snapshot-foreign"),
    ],
)
def test_what_is_no_snapshot_is_reported(tmp_path: Path, content: bytes, slug: str) -> None:
    path = tmp_path / "file.pickle"
    path.write_bytes(content)
    with pytest.raises(SnapshotError) as raised:
        read_snapshot(path)
    assert raised.value.slug == slug


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError) as raised:
        read_snapshot(tmp_path / "none.pickle")
    assert raised.value.slug == "no-such-file"


def test_a_snapshot_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "anything"
    path.write_bytes(pickle.dumps({}))
    assert is_snapshot(path)
    path.write_bytes(b"{}")
    assert not is_snapshot(path)


def doubled(kind: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    """Twice itself, forty levels deep: two hundred bytes of pickle, and 2**40 elements for who spells them out."""
    value: Any = kind((1, 1))
    for _ in range(40):
        value = kind((value, value))
    return value


def spoilt(place: str, value: Any) -> dict[str, Any]:
    """A snapshot with something foreign in one place."""
    top = small().snapshot()
    event = top["device_traces"][0][0]
    frame = {"filename": "/a.py", "line": 1, "name": "f"}
    if place in ("filename", "name", "line"):
        event["frames"] = [{**frame, place: value}]
    elif place == "settings":
        top["allocator_settings"] = {"a": value}
    elif place == "traces":
        top["device_traces"] = value
    else:
        event[place] = value
    return top


@pytest.mark.usefixtures("in_time", "pickles_read_here")
@pytest.mark.parametrize("value", [doubled(list), doubled(tuple), 1 << 70, -1, 2.5, None, "x" * 100_000, b"\xff", []])
@pytest.mark.parametrize(
    "place", ["filename", "name", "line", "settings", "traces", "frames", "action", "size", "addr"]
)
def test_a_foreign_value_anywhere_counts_as_absent(tmp_path: Path, place: str, value: Any) -> None:
    for found in histories(read_snapshot(written(tmp_path, spoilt(place, value)))):
        assert triage(found).reserved_peak >= 0


@pytest.mark.usefixtures("in_time")
def test_a_key_that_would_be_hashed_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "BASE_SECONDS", 1)
    data = bytearray(b"\x80\x04)\x940")
    for number in range(60):
        data += bytes((0x68, number, 0x68, number, 0x86, 0x94, 0x30))  # the last tuple twice in a new one
    path = tmp_path / "keys.pickle"
    path.write_bytes(bytes(data) + b"}h\x3cNs.")
    assert outcome(path) == "snapshot-strange"


@pytest.mark.usefixtures("in_time")
def test_a_pipe_is_refused_and_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.pickle"
    os.mkfifo(pipe)
    assert not is_snapshot(pipe)
    assert outcome(pipe) == "snapshot-unreadable"
