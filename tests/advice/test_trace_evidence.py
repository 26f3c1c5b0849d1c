"""What a bare trace does not hold is said, and nobody is blamed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from printed import violations
from traces import Event, Events, annotation, called, happened, kernel, launch, operator, python, step, write

from steptime.advice.evidence import Case
from steptime.advice.trace_evidence import look_at_trace
from steptime.advice.verdict import verdict
from steptime.analysis.trace_steps import steps_of
from steptime.diagnosis import diagnose_traces
from steptime.errors import NothingMeasuredError
from steptime.report.report import Report


def diagnosed(events: Events, folder: Path) -> Report:
    return diagnose_traces([write(events, folder)], "trace.json")


def case_of(events: Events, folder: Path) -> Case:
    trace = write(events, folder)
    return look_at_trace(trace, steps_of(trace)).case


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([called("cudaMalloc", 10 * at, 10 * at + 5) for at in range(5)], "5 runtime calls"),
        ([step(0, 100)], "nothing but the profiler's own marks"),
    ],
)
def test_a_trace_with_nothing_to_see_is_refused_in_one_sentence(events: Events, message: str, tmp_path: Path) -> None:
    with pytest.raises(NothingMeasuredError, match=f"{message}, but no operator and no kernel"):
        diagnosed(events, tmp_path)


@pytest.mark.parametrize(
    "asked",
    [called("cudaLaunchKernel", 12, 20, 1), annotation("nccl:all_to_all", 200, 300)],
    ids=["launches", "collectives"],
)
def test_a_device_that_was_not_recorded_is_no_processor(asked: Event, tmp_path: Path) -> None:
    shapes: dict[str, Any] = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"]}
    events = [step(0, 1000), operator("aten::mm", 10, 900, **shapes), asked]
    (process,) = diagnosed(events, tmp_path).processes
    assert process.case.roofline is None, "137 GFLOP in 0.9 ms are no processor's"
    assert "compute" not in {use.name for use in process.case.categories}
    assert process.verdict.bottleneck == "unknown"
    assert process.verdict.sentence.startswith("The device was not recorded")
    assert not [finding for finding in process.findings if finding.savings is not None]


def test_a_host_of_which_nothing_was_recorded_is_not_blamed(tmp_path: Path) -> None:
    events = [called("cudaGetDevice", 0, 5), launch(1, 900, 905), kernel(1, 910, 1000)]
    case = case_of(events, tmp_path)
    assert {use.name: round(use.duration.value / 1000) for use in case.categories} == {
        "compute": 90, "overhead": 15, "unexplained": 895,
    }  # fmt: skip
    assert verdict(case).bottleneck == "unexplained"


def test_work_that_was_not_recorded_is_the_verdict_where_it_is_most_of_the_step(tmp_path: Path) -> None:
    events = [step(0, 1000), operator("aten::mm", 0, 12), launch(1, 5, 10), kernel(1, 900, 1000)]
    (process,) = diagnosed(events, tmp_path).processes
    assert process.verdict.bottleneck == "unrecorded"
    assert "torch.profiler.schedule" in process.verdict.sentence
    assert not [finding for finding in process.findings if finding.savings is not None]


def test_the_old_autograd_profilers_trace_has_the_account_of_the_processor(tmp_path: Path) -> None:
    def listed(name: str, start: float, end: float) -> Event:
        return {"name": name, "ph": "X", "ts": start, "dur": end - start, "tid": 1, "pid": "CPU functions", "args": {}}

    case = case_of([listed("mm", 0, 600), listed("relu", 610, 700)], tmp_path)
    assert {use.name: round(use.duration.value / 1000) for use in case.categories} == {"compute": 686, "overhead": 14}


def test_what_an_optimizer_inside_of_another_does_counts_once(tmp_path: Path) -> None:
    both = [annotation("Optimizer.step#Combined.step", 0, 1000), annotation("Optimizer.step#Adam.step", 200, 900)]
    work = [operator("aten::add_", at, at + 50) for at in range(0, 1000, 100)]
    uses = {use.type: use for use in case_of([step(0, 2000), *both, *work], tmp_path).optimizers}
    assert {name: use.duration.value for name, use in uses.items()} == {"Adam": 700_000, "Combined": 300_000}
    assert sum(use.operators or 0 for use in uses.values()) == 10


def test_a_trace_that_ran_compiled_code_says_so(tmp_path: Path) -> None:
    eager = [step(0, 1000), operator("aten::mm", 0, 900), launch(1, 5, 10), kernel(1, 12, 900)]
    assert not case_of(eager, tmp_path).step.compiled
    region = happened("user_annotation", "Torch-Compiled Region: 0/0", 0, 950, (1, 10))
    assert case_of([*eager, region], tmp_path).step.compiled


@pytest.mark.parametrize("looping", [True, False], ids=["a loop", "one call of a model"])
def test_a_loop_is_what_repeats(looping: bool, tmp_path: Path) -> None:
    """Both call 120 small operators from one function of the user's."""
    called_once = [python("app.py(9): forward", 0, 4000)]
    each = [
        python("cell.py(3): cell" if looping else f"nn.Module: Block_{at}", 300 * at, 300 * at + 290)
        for at in range(12)
    ]
    small = [
        event
        for at in range(120)
        for event in (
            operator(f"aten::op{at % 10}", 30 * at, 30 * at + 9),
            launch(at + 1, 30 * at + 1, 30 * at + 5),
            kernel(at + 1, 30 * at + 6, 30 * at + 8),
        )
    ]
    (process,) = diagnosed([step(0, 4000), *called_once, *each, *small], tmp_path).processes
    assert ("dispatch-loop" in {finding.name for finding in process.findings}) is looping
    assert ("overhead-bound" in {finding.name for finding in process.findings}) is not looping


def test_outliers_of_a_trace_stand_alongside_the_usual_step(tmp_path: Path) -> None:
    """Of 22 steps three take ten times as long: the headline is the usual step's, and says what the three were."""
    events, at = [], 0
    for number in range(22):
        length = 1000 if number in (4, 11, 18) else 100
        events += [step(at, at + length, number), operator("aten::mm", at + 10, at + 100)]
        at += length
    (process,) = diagnosed(events, tmp_path).processes
    assert process.case.step.duration.value == 100_000
    assert sum(process.steady) == 19
    assert violations(diagnosed(events, tmp_path)) == []
    assert "Computing takes 88 µs per step (88 %): mm 88 µs" in process.verdict.sentence
    assert process.verdict.sentence.startswith(
        "3 of 22 steps took 1 ms, 10 times the usual 100 µs, excluded here: your own Python."
    )
    assert "Steps 5, 12, 19;" in " ".join(each for found in process.findings for each in found.evidence)
