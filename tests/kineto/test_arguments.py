"""The arguments that the reader drops, fetched again for single events."""

from __future__ import annotations

import dataclasses
import gzip
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from traces import kernel, operator, write

from steptime.trace import arguments
from steptime.trace.arguments import arguments_of
from steptime.trace.reader import read
from steptime.trace.table import ABSENT
from steptime.trace.windows import join

FILES = (
    "aorta/mi350x_repeated_correlation.pt.trace.json",
    "hta/triton_example/triton_example.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
    "tracelens/b200/eager_trace.json.gz",
    "param/dlrm_kineto/worker1_step_12.1694128201556.pt.trace.json.gz",
)


@pytest.mark.parametrize("file", FILES)
def test_arguments_are_those_of_a_plain_reader(shared_data: Path, file: str) -> None:
    path = shared_data / file
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    plain = [event for event in json.loads(text, parse_float=Decimal)["traceEvents"] if event.get("ph") == "X"]
    trace = read(path)
    assert len(plain) == len(trace.events)
    rows = np.random.default_rng(7).choice(len(plain), min(len(plain), 400), replace=False)
    found = arguments_of(trace, rows)
    for row, given in zip(rows.tolist(), found, strict=True):
        expected = plain[row].get("args", {})
        twins = [plain[other].get("args", {}) for other in twins_of(trace, row)]
        assert given == expected or given in twins, row


def twins_of(trace, row: int) -> list[int]:  # type: ignore[no-untyped-def]
    """Events that agree in name, lane, time and duration, which files of whole microseconds hold."""
    events = trace.events
    same = (events.begin == events.begin[row]) & (events.name == events.name[row]) & (events.lane == events.lane[row])
    same &= (events.duration == events.duration[row]) & (events.correlation == events.correlation[row])
    return np.flatnonzero(same).tolist()


def test_an_event_at_the_boundary_of_two_blocks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "BLOCK", 700)
    monkeypatch.setattr(arguments, "MARGIN", 300)
    trace = write([kernel(number, number, number + 1, f"k{number}") for number in range(1, 200)], tmp_path)
    found = arguments_of(trace, np.arange(len(trace.events)))
    assert [each["correlation"] for each in found if each] == list(range(1, 200))


def test_names_with_braces_and_braces_in_arguments_do_not_mislead(tmp_path: Path) -> None:
    lambdas = "void f<{lambda()#1}::operator()() const, {lambda(int)#2}, {x}>"
    events = [operator(lambdas, 1, 2, note=[{"a": 1}, {"ts": 5}]), operator(lambdas, 5, 6, note="other")]
    found = arguments_of(write(events, tmp_path), np.array([1, 0]))
    assert found == ({"note": "other"}, {"note": [{"a": 1}, {"ts": 5}]})


def test_arguments_of_joined_files_come_from_the_file_of_each(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    first = write([kernel(1, 0, 50, "x"), operator("aten::mm", 5, 6, mark="first")], folders[0])
    second = write([kernel(1, 1000, 1050, "x"), operator("aten::mm", 1005, 1006, mark="second")], folders[1])
    found = arguments_of(join([first, second]), np.array([3, 0, 1]))
    assert [(each or {}).get("mark", (each or {}).get("correlation")) for each in found] == ["second", 1, "first"]


def test_what_is_not_in_the_file_any_more_is_none(tmp_path: Path) -> None:
    trace = write([operator("aten::mm", 5, 6, mark=1), operator("aten::add", 7, 8, mark=2)], tmp_path)
    trace.path.write_text(trace.path.read_text().replace('"ts": 5', '"ts": 50'))
    assert arguments_of(trace, np.array([0, 1])) == (None, {"mark": 2})
    assert arguments_of(dataclasses.replace(trace, path=tmp_path / "gone.json"), np.array([0])) == (None,)


def test_no_more_is_looked_for_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "MOST", 2)
    trace = write([kernel(number, number, number + 1) for number in range(1, 5)], tmp_path)
    assert [each is None for each in arguments_of(trace, np.array([3, 1, 0]))] == [True, False, False]
    assert ABSENT not in trace.events.correlation
