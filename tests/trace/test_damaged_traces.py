"""Broken, odd and hostile files: what is whole is kept, what is lost is said, and nothing hangs."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime.errors import TraceError
from steptime.trace import reader
from steptime.trace.reader import read
from steptime.trace.source import TraceSource
from steptime.trace.table import ABSENT, EventKind, Trace, Track

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: str | bytes) -> Path:
        path = tmp_path / "trace.json"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


def event(number: int, **changed: Any) -> dict[str, Any]:
    args = {"External id": number, "correlation": number}
    made = {"ph": "X", "cat": "cpu_op", "name": f"aten::op{number % 7}", "pid": 1, "tid": 2, "ts": number * 10.5,
            "dur": 3.25, "args": args}  # fmt: skip
    return made | changed


def events(count: int) -> list[dict[str, Any]]:
    return [event(number) for number in range(count)]


def text(listed: list[dict[str, Any]], separator: str = ",\n  ") -> str:
    joined = separator.join(map(json.dumps, listed))
    return f'{{"schemaVersion": 1,\n"traceEvents": [\n  {joined}\n  ],\n"traceName": "t"}}'


def externals(trace: Trace) -> list[int]:
    return [int(external) for external in trace.events.external]


@pytest.mark.parametrize("separator", [",", ", ", ",\n", ",\r\n\r\n", " ,\t", ",\n  "])
def test_all_separators_of_events_are_understood(write: Write, separator: str) -> None:
    assert externals(read(write(text(events(9000), separator)))) == list(range(9000))


def test_an_indented_rewrite_is_read(write: Write) -> None:
    document = {"traceEvents": events(5000), "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]}
    trace = read(write(json.dumps(document, indent=4)))
    assert externals(trace) == list(range(5000))
    assert [device.name for device in trace.devices] == ["A", "B"]


def test_a_trailer_longer_than_a_block_is_read(write: Write) -> None:
    devices = [{"id": number, "name": "D" * 100} for number in range(20_000)]
    trace = read(write(json.dumps({"traceEvents": events(4000), "deviceProperties": devices})))
    assert externals(trace) == list(range(4000))
    assert len(trace.devices) == 20_000


def test_a_bare_array_with_a_byte_order_mark_is_read(write: Write) -> None:
    assert externals(read(write(b"\xef\xbb\xbf" + json.dumps(events(10)).encode()))) == list(range(10))


def test_an_empty_list_of_events_is_a_trace(write: Write) -> None:
    assert len(read(write('{"traceEvents": [ ]}')).events) == 0


def test_a_file_cut_short_keeps_every_whole_event(write: Write) -> None:
    whole = text(events(6000))
    cut = whole.index('"External id": 5432,')
    trace = read(write(whole[:cut]))
    assert externals(trace) == list(range(5432))
    assert trace.damage.truncated
    assert len(trace.damage.sentences) == 1


def test_a_gzip_cut_short_keeps_every_event_that_can_be_inflated(write: Write) -> None:
    packed = gzip.compress(text(events(20_000)).encode())
    half = packed[: len(packed) // 2]
    inflated = zlib.decompressobj(31).decompress(half).decode()
    trace = read(write(half))
    assert externals(trace) == list(range(inflated.count("}}")))
    assert trace.damage.truncated


def test_a_flipped_bit_in_a_gzip_is_no_traceback(write: Write) -> None:
    packed = bytearray(gzip.compress(text(events(20_000)).encode()))
    packed[len(packed) // 2] ^= 0x55
    trace = read(write(bytes(packed)))
    assert len(trace.events) > 100
    assert trace.damage.sentences


def test_two_gzip_members_are_one_file(write: Write) -> None:
    whole = text(events(3000)).encode()
    assert externals(read(write(gzip.compress(whole[:70_000]) + gzip.compress(whole[70_000:])))) == list(range(3000))


@pytest.mark.parametrize(
    "broken",
    [
        '{"ph": "X", "name": "a "quoted" name", "ts": 1, "dur": 1}',
        "#garbage#",
        '{"ph": "X", "name": }',
        "{]}",
        '"text"',
    ],
)
def test_damage_costs_two_events_at_most_and_is_counted(write: Write, broken: str) -> None:
    listed = [json.dumps(each) for each in events(8000)]
    listed.insert(4000, broken)
    trace = read(write('{"traceEvents": [' + ",\n".join(listed) + "]}"))
    lost = set(range(8000)) - set(externals(trace))
    assert lost <= {3999, 4000, 4001}
    assert len(lost) <= 2
    assert trace.damage.damaged + trace.damage.refused >= 1


def test_a_missing_comma_costs_two_events(write: Write) -> None:
    listed = [json.dumps(each) for each in events(8000)]
    listed[100] += listed.pop(101)
    trace = read(write('{"traceEvents": [' + ",".join(listed) + "]}"))
    assert set(range(8000)) - set(externals(trace)) == {100, 101}
    assert trace.damage.damaged == 1


def test_not_a_number_as_a_time_refuses_that_event_only(write: Write) -> None:
    listed = events(50)
    listed[7]["ts"] = float("nan")
    listed[9]["dur"] = float("inf")
    trace = read(write(text(listed)))
    assert set(range(50)) - set(externals(trace)) == {7, 9}
    assert trace.damage.refused == 2


def test_a_time_beyond_all_clocks_is_refused(write: Write) -> None:
    listed = events(5)
    listed[2]["ts"] = 1e300
    trace = read(write(text(listed)))
    assert externals(trace) == [0, 1, 3, 4]
    assert trace.damage.refused == 1


def test_a_negative_duration_reads_as_zero_and_is_reported(write: Write) -> None:
    trace = read(write(text([event(1, dur=-5.0), event(2)])))
    assert trace.events.duration.tolist() == [0, 3250]
    assert trace.damage.negative == 1


def test_invalid_utf8_in_a_name_keeps_the_event(write: Write) -> None:
    content = text(events(3)).encode().replace(b"aten::op1", b"aten::\xff\xfe")
    trace = read(write(content))
    assert externals(trace) == [0, 1, 2]
    assert trace.symbols[trace.events.name[1]].startswith("aten::")


def test_lanes_and_ids_of_odd_types_are_read(write: Write) -> None:
    odd = [
        event(1, pid="Spans", tid=None),
        event(2, tid=-7, args={"External id": 2, "stream": "0x1F", "bytes": "640", "correlation": None}),
        event(3, tid=1.0, args={"External id": 3.0, "Comms Id": 10159970886766084423}),
        event(4, args={"External id": 10159970886766084423, "stream": 2**70}),
        event(5, args=None),
        event(6, cat=None),
    ]
    trace = read(write(text(odd)))
    table = trace.events
    tracks = [trace.tracks[track] for track in table.track[:2]]
    assert tracks == [Track("Spans", None), Track(1, -7)]
    assert table.external.tolist() == [1, 2, 3, ABSENT, ABSENT, 6]
    assert table.stream.tolist()[1:4] == [31, ABSENT, ABSENT]
    assert table.bytes[1] == 640
    assert table.event_kind.tolist()[5] == EventKind.OTHER


def test_events_nested_in_arguments_do_not_cut_an_event(write: Write) -> None:
    inner = [event(0), event(1), {"a": [{}, {}]}]
    nested = [event(number, args={"External id": number, "list": inner}) for number in range(4000)]
    trace = read(write(text(nested)))
    assert externals(trace) == list(range(4000))


def test_separators_inside_strings_do_not_cut_an_event(write: Write) -> None:
    spiky = [event(number, name='}, {"ph": "X"}, {' * 50) for number in range(3000)]
    trace = read(write(text(spiky)))
    assert externals(trace) == list(range(3000))
    assert not trace.damage.sentences


def test_one_event_of_nine_megabytes_is_read(write: Write) -> None:
    listed = events(1000)
    listed[500] = event(500, args={"External id": 500, "list": [{"k": "v" * 90} for _ in range(90_000)]})
    trace = read(write(text(listed)))
    assert externals(trace) == list(range(1000))
    assert not trace.damage.sentences


def test_epoch_microseconds_with_a_fraction_keep_their_nanoseconds(write: Write) -> None:
    stamps = [f"1712195495505{number:03d}.{number:03d}" for number in range(1000)]
    listed = ",".join(f'{{"ph": "X", "name": "k", "cat": "kernel", "ts": {stamp}, "dur": 0.001}}' for stamp in stamps)
    trace = read(write('{"traceEvents": [' + listed + "]}"))
    assert trace.events.start.tolist() == [int(stamp.replace(".", "")) for stamp in stamps]


def test_relative_microseconds_with_a_base_keep_their_nanoseconds(write: Write) -> None:
    pairs = [(f"7384513245{n:03d}.{n:03d}", f"{n}.{n:03d}") for n in range(1000)]
    listed = ",".join(f'{{"ph": "X", "name": "k", "ts": {ts}, "dur": {dur}}}' for ts, dur in pairs)
    trace = read(write('{"baseTimeNanoseconds": 1727743122000000000, "traceEvents": [' + listed + "]}"))
    expected = [1727743122000000000 + 7384513245000000 + n * 1000 + n for n in range(1000)]
    assert trace.events.start.tolist() == expected
    assert trace.events.duration.tolist() == [n * 1000 + n for n in range(1000)]


@pytest.mark.parametrize(
    ("content", "slug"),
    [
        (b"", "trace-empty"),
        (b"hello", "trace-not-a-trace"),
        (b'{"a": 1}', "trace-not-a-trace"),
        (b"[1, 2, 3]", "trace-not-a-trace"),
        (b'{"traceEvents": [1, 2, "x"]}', "trace-not-a-trace"),
        (gzip.compress(b"nothing", mtime=0), "trace-not-a-trace"),
        (b"\x1f\x8bnot gzip at all", "trace-not-a-trace"),
        (bytes(range(256)) * 40, "trace-not-a-trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(write: Write, content: bytes, slug: str) -> None:
    with pytest.raises(TraceError) as refused:
        read(write(content))
    assert refused.value.slug == slug
    assert "\n" not in refused.value.sentence


def test_a_missing_file_and_a_folder_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for path, sentence, slug in (
        (tmp_path / "absent.json", "No such file", "no-such-file"),
        (tmp_path, "cannot be read", "trace-unreadable"),
    ):
        with pytest.raises(TraceError, match=sentence) as refused:
            read(path)
        assert refused.value.slug == slug


def test_a_file_without_permission_is_refused_in_one_sentence(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read anything, so the system's refusal is played."""
    path = write(text(events(3)))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TraceError, match=r"trace\.json cannot be read: Permission denied") as refused:
        read(path)
    assert refused.value.slug == "trace-unreadable"


def test_a_disk_that_fails_while_it_is_read_is_refused_in_one_sentence(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(text(events(9000)))

    class Failing(io.FileIO):
        def readinto(self, view: Any) -> int:
            if self.tell() > 100_000:
                raise OSError(5, "Input/output error")
            return super().readinto(view) or 0

    monkeypatch.setattr(Path, "open", lambda self, _: io.BufferedReader(Failing(str(self))))
    with pytest.raises(TraceError, match="cannot be read: Input/output error"):
        read(path)


def test_one_early_time_does_not_cost_the_others_their_digits(write: Write) -> None:
    stamps = ["0.5", *(f"17121954955051{number:02d}.{number:03d}" for number in range(50)), "1.5"]
    listed = ",".join(f'{{"ph": "X", "name": "k", "ts": {stamp}, "dur": 0.001}}' for stamp in stamps)
    trace = read(write('{"traceEvents": [' + listed + "]}"))
    assert trace.events.start.tolist()[1:-1] == [int(stamp.replace(".", "")) for stamp in stamps[1:-1]]


def test_a_gzip_bomb_of_events_stops_at_the_limit(write: Write) -> None:
    bomb = gzip.compress(b'{"traceEvents": [' + (json.dumps(event(1)) + ",").encode() * 200_000, compresslevel=9)
    with pytest.raises(TraceError, match=r"more than 2 MB of JSON.*--max-size") as refused:
        read(write(bomb), max_size=2_000_000)
    assert refused.value.slug == "trace-too-large"


def test_a_gzip_bomb_without_events_is_refused_early(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LARGEST_BLOCK", 4 * 1024 * 1024)
    with pytest.raises(TraceError, match="more than 4 MB"):
        read(write(gzip.compress(bytes(40_000_000))))


def test_random_damage_never_raises_anything_but_a_trace_error(write: Write) -> None:
    whole = text(events(400)).encode()
    chance = random.Random(5)
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.choice(b'{}[],:"\\0x\xff\n')
        trace_of(write(bytes(content)))


def trace_of(path: Path) -> Trace | None:
    try:
        return read(path)
    except TraceError:
        return None


@pytest.mark.usefixtures("in_time")
def test_a_pipe_is_refused_and_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="is a pipe"), TraceSource(pipe, 1 << 20):
        raise AssertionError("a pipe was opened")


@pytest.mark.parametrize("kinds", [[3], ["float", ["float"]], "float", None])
def test_types_of_a_product_may_be_anything(write: Write, kinds: Any) -> None:
    args = {"Input type": kinds, "Input Strides": [[], [1]], "Input Dims": [[4, 4], [4]]}
    trace = read(write(text([event(1, name="aten::mm", args=args), event(2)])))
    assert len(trace.events) == 2
