"""A step cut out of a trace: every nanosecond posted, gaps with their causes, events with shapes and lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from report.step_views import Seen, events_of
from traces import MAIN, Events, annotation, called, copy, happened, kernel, launch, operator, python, step

from steptime.advice.trace_evidence import look_at_trace
from steptime.analysis.categories import Category
from steptime.analysis.trace_steps import steps_of
from steptime.report import step_view as cutting
from steptime.report.step_view import StepView, step_view_of_trace
from steptime.trace.gather import gather
from steptime.trace.reader import DEFAULT_MAX_SIZE, read
from steptime.trace.table import Trace
from steptime.trace.windows import read_rank

FRAME = "train.py(12): train"


def written(path: Path, events: Events) -> Trace:
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": "Testcard"}]}))
    return read(path)


def cut_of(trace: Trace) -> StepView:
    looked = look_at_trace(trace, steps_of(trace))
    return step_view_of_trace(looked.steps, looked.numbers)


def two_steps() -> Events:
    events: Events = []
    for number, start in enumerate((0, 1000)):
        events += [
            step(start, start + 1000, number + 3),
            python(FRAME, start, start + 1000),
            annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 400),
            happened("cpu_op", "aten::mm", start + 400, start + 500, (1, MAIN), **{"Input Dims": [[8, 4], [4, 2]]}),
            launch(number + 1, start + 450, start + 460),
            kernel(number + 1, start + 470, start + 900 + 20 * number),
            copy(number + 11, start + 920 + 20 * number, start + 960),
            called("cudaMemcpyAsync", start + 905, start + 915, number + 11),
        ]
    return events


def of(seen: list[Seen], **wanted: str) -> list[Seen]:
    return [each for each in seen if all(getattr(each, name) == value for name, value in wanted.items())]


def test_the_category_of_the_step_is_its_breakdown(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", two_steps())
    looked = look_at_trace(trace, steps_of(trace))
    step_view = cut_of(trace)
    row = looked.whole.entries[step_view.step]
    spent = dict.fromkeys((category.name.lower() for category in Category), 0)
    for each in of(events_of(step_view), kind="category"):
        spent[each.name] += each.end - each.start
    assert list(spent.values()) == row.tolist()
    assert step_view.end - step_view.start == row.sum()


def test_idle_time_has_its_reason(tmp_path: Path) -> None:
    seen = events_of(cut_of(written(tmp_path / "t.json", two_steps())))
    (waiting,) = of(seen, kind="category", name="input")
    assert "enumerate(DataLoader)" in waiting.detail.note


def test_events_have_their_operator_shapes_and_line(tmp_path: Path) -> None:
    seen = events_of(cut_of(written(tmp_path / "t.json", two_steps())))
    (gemm,) = of(seen, kind="stream", name="gemm")[:1]
    assert (gemm.detail.operator, gemm.colour) == ("aten::mm", "compute")
    assert gemm.detail.shapes == "[[8, 4], [4, 2]]"
    assert gemm.detail.source is not None
    assert (gemm.detail.source.file, gemm.detail.source.line) == ("train.py", 12)
    moved = of(seen, kind="stream", colour="copy")[0]
    assert moved.detail.note == "4,096 bytes"


def test_a_caller_is_above_what_it_calls(tmp_path: Path) -> None:
    seen = events_of(cut_of(written(tmp_path / "t.json", two_steps())))
    host = of(seen, kind="thread")
    rows = {each.name: each.row for each in host}
    assert rows["aten::mm"] < rows["cudaLaunchKernel"]
    assert rows[FRAME] < rows["aten::mm"]


def test_the_step_in_the_middle_is_displayed(tmp_path: Path) -> None:
    events = [step(start, end, number) for number, (start, end) in enumerate([(0, 10), (10, 40), (40, 60), (60, 75)])]
    events += [operator("aten::add", each["ts"] + 1, each["ts"] + 5) for each in events]
    step_view = cut_of(written(tmp_path / "t.json", events))
    assert step_view.end - step_view.start in (15_000, 20_000)
    assert "of 4 steady steps" in step_view.how


def test_a_step_of_resnet_holds_its_kernels(shared_data: Path) -> None:
    path = shared_data / "kineto" / "resnet50_workers0.pt.trace.json.gz"
    (rank,) = gather([str(path)], max_size=DEFAULT_MAX_SIZE).ranks
    trace = read_rank(rank, max_size=DEFAULT_MAX_SIZE, cache=False)
    looked = look_at_trace(trace, steps_of(trace))
    step_view = step_view_of_trace(looked.steps, looked.numbers)
    seen = events_of(step_view)
    window = looked.later.windows[step_view.step - looked.case.step.warm_up]
    ran = (trace.events.start < window[1]) & (trace.events.end > window[0]) & (trace.events.stream == 7)
    kernels = [each for each in of(seen, kind="stream") if each.end > step_view.start and each.start < step_view.end]
    device = np.isin(trace.events.event_kind, (4, 5, 6))
    assert len(kernels) == int((ran & device).sum()) > 1000
    assert step_view.left_out == 0
    posted = sum(each.end - each.start for each in of(seen, kind="category"))
    assert posted == window[1] - window[0]


def test_of_a_step_of_too_many_events_the_kernels_and_the_longest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = two_steps()
    events += [operator(f"aten::tiny{at}", 1500 + at, 1500.5 + at) for at in range(40)]
    monkeypatch.setattr(cutting, "MOST_EVENTS", 14)
    step_view = cut_of(written(tmp_path / "t.json", events))
    seen = [each for each in events_of(step_view) if each.kind != "category"]
    assert len(of(seen, kind="stream")) >= 2
    assert not [each for each in seen if each.name.startswith("aten::tiny")]
    assert len(events_of(step_view)) <= 14
    assert step_view.left_out > 0
