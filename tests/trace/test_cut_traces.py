"""A real trace that ends anywhere: nothing but a TraceError is raised, and every whole event before the cut is kept."""

from __future__ import annotations

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from examples import examples
from steptime.errors import TraceError
from steptime.trace.reader import read

SMALL = (
    "hta/triton_example/triton_example.json.gz",
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
    "hta/large_integer_trace/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz",
    "tracelens/torch_compile_triton/trace.json.gz",
)


@cache
def plain(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


@cache
def ends_of_complete_events(path: Path) -> tuple[int, ...]:
    """Offsets in the file behind each complete event, by the json module alone."""
    text = plain(path).decode()
    assert text.isascii()
    decoder = json.JSONDecoder()
    position = text.index("[", text.index('"traceEvents"')) + 1
    ends: list[int] = []
    while True:
        while text[position] in " ,\n\r\t":
            position += 1
        if text[position] == "]":
            return tuple(ends)
        event, position = decoder.raw_decode(text, position)
        if event.get("ph") == "X":
            ends.append(position)


def kept(content: bytes) -> int | None:
    """Events of a file of this content, None where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.json"
        path.write_bytes(content)
        try:
            return len(read(path).events)
        except TraceError:
            return None


@pytest.mark.parametrize("name", SMALL)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_cut_keeps_every_whole_event(shared_data: Path, name: str, data: st.DataObject) -> None:
    text, ends = plain(shared_data / name), ends_of_complete_events(shared_data / name)
    near_an_end = st.tuples(st.sampled_from(ends), st.integers(-3, 8)).map(sum)
    cut = data.draw(st.integers(0, len(text)) | near_an_end | st.integers(ends[-1], len(text)))
    assert (kept(text[:cut]) or 0) == sum(end <= cut for end in ends)


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_a_packed_trace_may_be_cut_or_changed_anywhere(shared_data: Path, data: st.DataObject) -> None:
    packed = bytearray((shared_data / data.draw(st.sampled_from(SMALL))).read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    kept(bytes(packed[: data.draw(st.integers(0, len(packed)))]))


def test_a_trailer_that_was_cut_costs_no_event_and_is_reported(shared_data: Path, tmp_path: Path) -> None:
    whole = plain(shared_data / SMALL[0])
    path = tmp_path / "cut.json"
    path.write_bytes(whole.rstrip()[:-1])
    trace = read(path)
    assert len(trace.events) == len(ends_of_complete_events(shared_data / SMALL[0]))
    assert trace.damage.truncated
