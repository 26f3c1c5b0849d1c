"""The flame graph of a step, and what speedscope reads of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import kernel, launch, operator, python, step, write

from steptime.analysis.step_context import step_context
from steptime.answer.output import extension_of
from steptime.cli.options import REPORT_FORMATS
from steptime.errors import OutputError, RecordingError
from steptime.report import speedscope
from steptime.report.flame import FlameGraph, flame_of, stacks_of
from steptime.report.json import read, render
from steptime.report.page.charts import flames
from steptime.report.report import Report

US = 1_000


@pytest.fixture
def graph(tmp_path: Path) -> FlameGraph:
    """A step of 100 µs: the user's function calls one operator twice, each time for a kernel."""
    trace = write(
        [
            step(0, 100),
            python("train.py(7): forward", 10, 60),
            operator("aten::mm", 20, 30), launch(1, 22, 26), operator("aten::mm", 40, 50), launch(2, 42, 46),
            kernel(1, 30, 60), kernel(2, 60, 95),
        ],
        tmp_path,
    )  # fmt: skip
    return flame_of(step_context(trace, np.array([[0, 100 * US]])))


def reported(graph: FlameGraph, thread: int) -> dict[str, int]:
    """ns of each stack itself."""
    parent, label, own = stacks_of(graph.threads[thread])
    paths: list[str] = []
    for stack, caller in enumerate(parent):
        paths.append(f"{paths[caller]}/{graph.labels[label[stack]].name}" if caller >= 0 else "")
    return {path: spent for path, spent in zip(paths, own, strict=True) if spent}


def test_a_thread_sums_to_the_step_and_equal_stacks_are_one(graph: FlameGraph) -> None:
    assert reported(graph, 0) == {
        "": 50 * US,
        "/forward": 30 * US,
        "/forward/aten::mm": 12 * US,
        "/forward/aten::mm/cudaLaunchKernel": 8 * US,
    }


def test_kernels_stand_below_the_stack_that_launched_them(graph: FlameGraph) -> None:
    assert reported(graph, 1) == {"/forward/aten::mm/gemm": 65 * US}


def test_speedscope_gets_a_profile_for_each_thread(graph: FlameGraph, report: Report) -> None:
    report = replace(report, processes=(replace(report.processes[0], flame=graph), *report.processes[1:]))
    document: Any = json.loads(speedscope.render(report))
    frames = document["shared"]["frames"]
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert [profile["name"] for profile in document["profiles"]] == ["Training thread 10", "stream 7"]
    for profile in document["profiles"]:
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        assert all(number in range(len(frames)) for sample in profile["samples"] for number in sample)
    assert {"name": "forward", "file": "train.py", "line": 7} in frames


def test_without_a_profiled_step_there_is_none(report: Report) -> None:
    with pytest.raises(OutputError):
        speedscope.render(report)


def test_the_name_gives_the_format() -> None:
    assert extension_of("step.speedscope.json", REPORT_FORMATS) == ".speedscope.json"
    assert extension_of("speedscope.json", REPORT_FORMATS) == ".json"


def test_no_box_is_wider_than_its_caller(graph: FlameGraph) -> None:
    for flame in flames(graph):
        for box in flame.boxes[1:]:
            above = [each for each in flame.boxes if each.row == box.row - 1 and each.start <= box.start + 1e-9]
            assert max(each.start + each.width for each in above) >= box.start + box.width - 1e-9


@pytest.mark.parametrize(
    ("old", "new"),
    [("parent_column", "x 1"), ("parent_column", "-1 7"), ("label_column", "0"), ("label_column", "0 99999"),
     ("self_column", "1.5")],
)  # fmt: skip
def test_columns_of_a_strangers_report_are_refused_where_they_are_none(
    old: str, new: str, graph: FlameGraph, report: Report
) -> None:
    report = replace(report, processes=(replace(report.processes[0], flame=graph), *report.processes[1:]))
    whole = json.loads(render(report))
    assert read(render(report).encode(), "x.json").processes[0].flame == graph
    whole["processes"][0]["flame"]["threads"][0][old] = new
    with pytest.raises(RecordingError, match="is not a report that this steptime can read"):
        read(json.dumps(whole).encode(), "x.json")
