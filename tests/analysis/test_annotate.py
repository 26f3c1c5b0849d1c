"""A trace written again with our tracks: the original's events untouched, ours balanced, no reader confused."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.trace_events import annotation, called, kernel, operator, replayed, step
from published import trace_of

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Category
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.what_if.annotate import (
    BREAKDOWN,
    CATEGORY,
    FIRST_PROCESS,
    IDLE,
    PATH_DEVICE,
    PATH_HOST,
    annotate,
)
from steptime.errors import OutputError, SteptimeError
from steptime.trace.reader import read

DLRM = "param/dlrm_kineto/worker1_step_12.1694128201556.pt.trace.json.gz"
FILES = (
    "aorta/mi350x_repeated_correlation.pt.trace.json",
    "hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
    "hta/rank_unavailable/rank_not_found_v0.json.gz",
    DLRM,
    pytest.param("kineto/resnet50_workers4.pt.trace.json.gz", marks=pytest.mark.slow),
    pytest.param("hta/nccl_parser_config/nccl_data.json.gz", marks=pytest.mark.slow),
    pytest.param("tracelens/mi300/resnet_act_checkpoint.json.gz", marks=pytest.mark.slow),
)
Event = dict[str, Any]


def loaded(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)


def nanoseconds(time: float | int | str) -> int:
    return int(Decimal(str(time)) * 1000)


def exact(path: Path) -> Any:
    """With times as the file has them, no digit lost."""
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, parse_float=str)


def slices(events: list[Event], track: int) -> list[tuple[str, int, int, int]]:
    """(name, start, end, depth) of a track, from its start and end events, which must pair."""
    open_, found = [], []
    for event in (each for each in events if each.get("cat") == CATEGORY and each["tid"] == track):
        if event["ph"] == "B":
            open_.append((event["name"], nanoseconds(event["ts"])))
        elif event["ph"] == "E":
            name, start = open_.pop()
            found.append((name, start, nanoseconds(event["ts"]), len(open_)))
    assert not open_
    return found


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two steps with a kernel each."""
    path = tmp_path / "small.json"
    events = []
    for index in range(2):
        start = index * 100
        events += [
            step(start, start + 100, index),
            annotation("enumerate(DataLoader)#x", start, start + 30),
            operator("aten::mm", start + 30, start + 60),
            called("cudaLaunchKernel", start + 40, start + 44, index + 1),
            kernel(index + 1, start + 50, start + 70),
        ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "small"}, indent=1))
    return path


@pytest.mark.parametrize("file", FILES)
def test_the_originals_events_are_all_there_and_nothing_else_changed(
    shared_data: Path, tmp_path: Path, file: str
) -> None:
    out = tmp_path / "annotated.json.gz"
    annotate(shared_data / file, out, cache=False)
    before, after = exact(shared_data / file), exact(out)
    theirs = [event for event in after["traceEvents"] if event.get("cat") != CATEGORY]
    assert theirs == before["traceEvents"]
    assert {key: value for key, value in after.items() if key != "traceEvents"} == {
        key: value for key, value in before.items() if key != "traceEvents"
    }


@pytest.mark.parametrize("file", FILES)
def test_the_track_of_the_breakdown_sums_to_the_breakdown(shared_data: Path, tmp_path: Path, file: str) -> None:
    out = tmp_path / "annotated.json"
    annotate(shared_data / file, out, cache=False)
    trace = trace_of(shared_data / file)
    breakdown = breakdown_of(step_context(trace, steps_of(trace)))
    found = slices(exact(out)["traceEvents"], BREAKDOWN)
    entries = np.zeros_like(breakdown.entries)
    ends = np.sort([end for _, _, end, depth in found if depth == 0])
    assert len(ends) == len(breakdown.wall)
    for name, start, end, depth in found:
        if depth:
            entries[np.searchsorted(ends, end), Category[name.upper()]] += end - start
    assert entries.tolist() == breakdown.entries.tolist()
    idle = slices(exact(out)["traceEvents"], IDLE)
    if breakdown.device != "cpu":
        assert sum(end - start for _, start, end, _ in idle) == breakdown.entries[:, Category.UNRECORDED :].sum()
    else:
        assert idle == []


@pytest.mark.parametrize("file", FILES)
def test_our_reader_sees_the_same_trace(shared_data: Path, tmp_path: Path, file: str) -> None:
    out = tmp_path / "annotated.json.gz"
    annotate(shared_data / file, out, cache=False)
    before, after = trace_of(shared_data / file), read(out)
    assert len(after.events) == len(before.events)
    for column in ("start", "duration", "event_kind", "track", "correlation"):
        assert np.array_equal(getattr(after.events, column), getattr(before.events, column)), column
    one, other = (breakdown_of(step_context(trace, steps_of(trace))) for trace in (before, after))
    assert one.entries.tolist() == other.entries.tolist()


def test_the_critical_path_is_that_of_the_replay_and_its_arrows_pair(shared_data: Path, tmp_path: Path) -> None:
    file, out = shared_data / DLRM, tmp_path / "annotated.json"
    annotate(file, out, cache=False)
    events = exact(out)["traceEvents"]
    pieces = [*slices(events, PATH_HOST), *slices(events, PATH_DEVICE)]
    replay = replayed(read(file))
    assert sum(end - since for _, since, end, _ in pieces) == replay.replayed.sum()
    pieces.sort(key=lambda piece: piece[1])
    assert all(before[2] <= after[1] for before, after in pairwise(pieces))
    arrows = defaultdict(list)
    for event in events:
        if event.get("cat") == CATEGORY and event["ph"] in "sf":
            arrows[event["id"]].append((nanoseconds(event["ts"]), event["ph"], event["tid"]))
    assert arrows
    for ends in arrows.values():
        (left, _, start), (arrived, _, stop) = sorted(ends, key=lambda end: end[1], reverse=True)
        assert left <= arrived
        assert start != stop


def test_idle_stretches_carry_their_category_and_what_the_thread_was_in(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "annotated.json"
    annotate(small, out, cache=False)
    found = slices(exact(out)["traceEvents"], IDLE)
    assert found[0] == ("input: enumerate(DataLoader)#x", 0, 30_000, 0)
    assert found[1] == ("overhead: aten::mm", 30_000, 50_000, 0)


def test_our_process_is_none_of_the_traces(small: Path, tmp_path: Path) -> None:
    events = loaded(small)
    events["traceEvents"].append({**step(0, 1), "pid": FIRST_PROCESS})
    taken = tmp_path / "taken.json"
    taken.write_text(json.dumps(events))
    annotate(taken, tmp_path / "out.json", cache=False)
    ours = {event["pid"] for event in loaded(tmp_path / "out.json")["traceEvents"] if event.get("cat") == CATEGORY}
    assert ours == {FIRST_PROCESS + 1}


@pytest.mark.parametrize(
    "layout",
    [lambda text: text, lambda text: json.dumps(json.loads(text)["traceEvents"]), lambda text: "\ufeff" + text],
)
def test_other_layouts_stay_valid(small: Path, tmp_path: Path, layout: Any) -> None:
    """As Kineto writes it, a bare list, and with a byte order mark."""
    other = tmp_path / "other.json"
    other.write_text(layout(small.read_text()), encoding="utf-8")
    annotate(other, tmp_path / "out.json", cache=False)
    after = json.loads((tmp_path / "out.json").read_text(encoding="utf-8-sig"))
    events = after if isinstance(after, list) else after["traceEvents"]
    assert [event for event in events if event.get("cat") != CATEGORY] == loaded(small)["traceEvents"]


def test_a_trace_that_ends_in_the_middle_is_closed_behind_its_last_whole_event(small: Path, tmp_path: Path) -> None:
    text = json.dumps(loaded(small))
    torn = tmp_path / "torn.json"
    torn.write_text(text[: text.rindex('"gemm"')])
    annotate(torn, tmp_path / "out.json", cache=False)
    theirs = [event for event in loaded(tmp_path / "out.json")["traceEvents"] if event.get("cat") != CATEGORY]
    assert theirs == loaded(small)["traceEvents"][:-1]


def refused(*arguments: Any, **known: Any) -> str:
    with pytest.raises(SteptimeError) as raised:
        annotate(*arguments, cache=False, **known)
    return raised.value.slug


def test_what_exists_is_not_overwritten_without_force(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("mine")
    assert refused(small, out) == "output-exists"
    assert out.read_text() == "mine"
    annotate(small, out, force=True, cache=False)
    assert loaded(out)["traceName"] == "small"


def test_the_trace_itself_is_never_overwritten(small: Path) -> None:
    before = small.read_bytes()
    assert refused(small, small, force=True) == "annotate-onto-source"
    assert small.read_bytes() == before


def test_a_name_says_the_format(small: Path, tmp_path: Path) -> None:
    assert refused(small, tmp_path / "out.pb") == "output-format"
    assert refused(small, tmp_path) == "output-format"
    (tmp_path / "folder.json").mkdir()
    assert refused(small, tmp_path / "folder.json") == "output-folder"


def test_annotating_twice_is_refused_and_leaves_nothing(small: Path, tmp_path: Path) -> None:
    annotate(small, tmp_path / "once.json", cache=False)
    assert refused(tmp_path / "once.json", tmp_path / "twice.json") == "annotate-twice"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once.json", "small.json"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("steptime.analysis.what_if.annotate._write", full)
    with pytest.raises(OutputError, match="No space left on device"):
        annotate(small, tmp_path / "out.json", cache=False)
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]
