"""Profiles that lost what the device did: blanked by hand in recordings of an H100 and an H200, no idle time comes of
it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_recordings import report_of

from steptime.analysis.device_activity import has_kernels, held_whole, unseen_work
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.recorded_breakdown import RecordedBreakdown, breakdown_of_process
from steptime.analysis.trace_steps import find_steps, whole_steps
from steptime.diagnosis import diagnose_paths
from steptime.recording.load import load
from steptime.report.report import Report
from steptime.trace.reader import read
from steptime.trace.vendors import OPERATOR_ON_DEVICE

DATA = Path(__file__).resolve().parents[1] / "data" / "gpu"
JOBS = sorted(each.name for each in DATA.iterdir() if each.is_dir())
BLIND = ("amp", "chargpt", "ddp", "dense", "graphs", "nanogpt", "streams")
"""Jobs that were recorded while the tracer was taken down behind each window."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Event = dict[str, Any]


def trace_of(recording: Path, number: int) -> Path:
    (file,) = recording.glob(f"process-*/trace-{number}.json.gz")
    return file


def rewritten(source: Path, target: Path, kept: Callable[[Event], bool]) -> Path:
    """A trace with some of its events."""
    with gzip.open(source) as file:
        reported = json.load(file)
    reported["traceEvents"] = [each for each in reported["traceEvents"] if kept(each)]
    target.write_bytes(gzip.compress(json.dumps(reported).encode(), 1))
    return target


def host_only(event: Event) -> bool:
    """As where the tracer of the window before was still being taken down."""
    return event.get("cat") not in (*DEVICE, "cuda_runtime", "cuda_driver", "gpu_user_annotation")


def copied(job: str, folder: Path) -> Path:
    return shutil.copytree(DATA / job, folder / job)


def broken_down(recording: Path) -> RecordedBreakdown:
    (process,) = load(recording).processes
    return breakdown_of_process(process, lay_out_whole(process))


def shares(report: Report) -> dict[str, float]:
    (process,) = report.processes
    return {use.name: use.duration.value / process.case.step.duration.value for use in process.case.categories}


def findings(report: Report) -> list[str]:
    return [finding.code for finding in report.processes[0].findings]


@pytest.mark.parametrize("job", BLIND)
def test_a_window_with_stacks_that_saw_no_device_counts_for_its_stacks_alone(job: str) -> None:
    """So the windows behind the plain ones of these recordings are: the tracer was being taken down."""
    assert not has_kernels(read(trace_of(DATA / job, 4)))
    recorded = broken_down(DATA / job)
    assert recorded.problems == ("trace-4.json.gz, which contains no device activity, except its stacks.",)
    assert [(window.stacks, window.on_device) for window in recorded.windows] == [(False, True), (True, False)]
    assert recorded.functions


@pytest.mark.parametrize("job", ["amp", pytest.param("chargpt", marks=pytest.mark.slow)])
def test_a_second_window_without_device_events_changes_no_figure(job: str, tmp_path: Path) -> None:
    """A further window, as `profile-request` asks for one, whose kernels are lost."""
    before = shares(report_of(job))
    recording = copied(job, tmp_path)
    plain = trace_of(recording, 3)
    rewritten(plain, plain.with_name("trace-5.json.gz"), host_only)
    facts = plain.with_name("facts.jsonl")
    line = next(each for each in facts.read_text().splitlines() if '"trace-3.json"' in each)
    with facts.open("a") as file:
        file.write(line.replace("trace-3.json", "trace-5.json").replace('"number": 3', '"number": 5') + "\n")
    report = diagnose_paths([str(recording)])
    assert "trace-5.json.gz, which contains no device activity." in report.problems
    assert shares(report) == pytest.approx(before, rel=1e-6)
    assert findings(report) == findings(report_of(job))


@pytest.mark.parametrize("lost", ["all", "kernels"])
@pytest.mark.parametrize("job", ["amp", pytest.param("chargpt", marks=pytest.mark.slow)])
def test_without_any_window_of_the_device_nothing_is_reported_of_it(job: str, lost: str, tmp_path: Path) -> None:
    recording = copied(job, tmp_path)
    kept = host_only if lost == "all" else lambda event: event.get("cat") != "kernel"
    rewritten(trace_of(DATA / job, 3), trace_of(recording, 3), kept)
    report = diagnose_paths([str(recording)])
    assert report.problems[0].startswith("the device's time, because no profile of the job contains device activity.")
    assert "record again" in report.problems[0]
    process = report.processes[0]
    names = {use.name for use in process.case.categories}
    assert not names & {"compute", "overhead", "communication", "sync", "unrecorded"}, "phases alone are known"
    assert process.verdict.confidence != "confident"
    assert not [code for code in findings(report) if code.startswith(("ST3", "ST4"))]


@pytest.mark.parametrize(
    "job", ["amp", "ddp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("chargpt", "graphs"))]
)
def test_steps_that_lost_a_part_of_their_kernels_are_left_out(job: str, tmp_path: Path) -> None:
    """The kernels of the last two of five steps are lost, as where the tracer's buffers overflow."""
    before = shares(report_of(job))
    recording = copied(job, tmp_path)
    whole = broken_down(recording).windows[0]
    late = (whole.boundaries[-2, 0] - whole.trace.base_ns) / 1000
    launched = whole.trace.events
    steps = len(whole)
    assert steps == 5 - (job in ("ddp", "graphs"))  # in these the first lies behind the profiler's start

    with gzip.open(trace_of(recording, 3)) as file:
        events = json.load(file)["traceEvents"]
    runs = {each["args"]["correlation"] for each in events
            if each.get("cat") in ("cuda_runtime", "cuda_driver") and each["ts"] >= late}  # fmt: skip

    def kept(event: Event) -> bool:
        return event.get("cat") not in DEVICE or event["args"]["correlation"] not in runs

    rewritten(trace_of(DATA / job, 3), trace_of(recording, 3), kept)
    recorded = broken_down(recording)
    assert len(recorded.windows[0].trace.events) < len(launched)
    assert recorded.problems[0].startswith(f"2 of {steps} steps in trace-3.json.gz, whose device activity")
    assert len(recorded.windows[0]) == steps - 2
    after = shares(diagnose_paths([str(recording)]))
    assert after["compute"] == pytest.approx(before["compute"], abs=0.03)


def test_few_lost_kernels_leave_a_step_in(tmp_path: Path) -> None:
    trace = read(trace_of(DATA / "chargpt", 3))
    steps = find_steps(trace).boundaries
    assert held_whole(trace, steps).all()
    seen = [0]

    def one_of_twelve(event: Event) -> bool:
        seen[0] += event.get("cat") == "kernel"
        return event.get("cat") != "kernel" or seen[0] % 12 != 0

    thinned = read(rewritten(trace.path, tmp_path / "trace.json.gz", one_of_twelve))
    assert held_whole(thinned, steps).all()

    seen[0] = 0

    def one_of_eight(event: Event) -> bool:
        seen[0] += event.get("cat") == "kernel"
        return event.get("cat") != "kernel" or seen[0] % 8 != 0

    assert not held_whole(read(rewritten(trace.path, tmp_path / "less.json.gz", one_of_eight)), steps).any()


def test_launches_of_a_capture_run_nothing_and_lose_nothing(tmp_path: Path) -> None:
    """A graph is captured in the profiled steps: what its launches run comes later, with the graph."""
    source = trace_of(DATA / "dense", 3)
    with gzip.open(source) as file:
        reported = json.load(file)
    launches = sorted((each for each in reported["traceEvents"] if each.get("name") == "cudaLaunchKernel"),
                      key=lambda each: each["ts"])  # fmt: skip
    captured = {each["args"]["correlation"] for each in launches[60:100]}
    first, last = launches[60], launches[99]
    call = {key: first[key] for key in ("ph", "cat", "pid", "tid")}
    start = {**call, "name": "cudaStreamBeginCapture", "ts": first["ts"] - 0.2, "dur": 0.1, "args": {"correlation": 1}}
    end = {**call, "name": "cudaStreamEndCapture", "ts": last["ts"] + last["dur"] + 0.1, "dur": 0.1}
    events = [each for each in reported["traceEvents"]
              if each.get("cat") != "kernel" or each["args"]["correlation"] not in captured]  # fmt: skip
    for name, more in (("lost", []), ("captured", [start, {**end, "args": {"correlation": 2}}])):
        reported["traceEvents"] = [*events, *more]
        (tmp_path / f"{name}.json").write_text(json.dumps(reported), encoding="utf-8")
    boundaries = find_steps(read(source)).boundaries
    assert not held_whole(read(tmp_path / "lost.json"), boundaries).all()
    assert held_whole(read(tmp_path / "captured.json"), boundaries).all()


def test_of_a_bare_trace_too(tmp_path: Path) -> None:
    plain = trace_of(DATA / "amp", 3)
    report = diagnose_paths([str(plain)])
    assert report.problems == ()
    computing = {use.name: use.duration.value for use in report.processes[0].case.categories}["compute"]

    trace = read(plain)
    steps = find_steps(trace).boundaries
    late = (steps[-2, 0] - trace.base_ns) / 1000
    cut = rewritten(plain, tmp_path / "cut.json.gz", lambda event: event.get("cat") not in DEVICE or event["ts"] < late)
    report = diagnose_paths([str(cut)])
    left = len(steps) - int(held_whole(read(cut), steps).sum())
    assert left in (2, 3)
    assert report.problems == (
        f"{left} of {len(steps)} steps in cut.json.gz, whose device activity the profiler lost.",
    )
    now = {use.name: use.duration.value for use in report.processes[0].case.categories}["compute"]
    assert now == pytest.approx(computing, rel=0.05)

    seen = [0]

    def every_other(event: Event) -> bool:
        seen[0] += event.get("cat") == "kernel"
        return event.get("cat") != "kernel" or seen[0] % 2 == 0

    torn = rewritten(plain, tmp_path / "torn.json.gz", every_other)
    report = diagnose_paths([str(torn)])
    assert report.problems[0].startswith(f"the device's side of {len(steps)} of {len(steps)} steps in torn.json.gz")
    assert report.environment.device == "NVIDIA H200 (not recorded)"
    assert report.processes[0].verdict.sentence.startswith("The device was not recorded.")
    assert "compute" not in {use.name for use in report.processes[0].case.categories}


def test_a_blind_file_among_those_of_one_process(tmp_path: Path) -> None:
    """torch.profiler's schedule writes a file for each cycle; the second one here is blind."""
    plain = trace_of(DATA / "amp", 3)
    first = rewritten(plain, tmp_path / "first.json.gz", lambda _: True)

    def moved(event: Event) -> bool:
        if "ts" in event:
            event["ts"] += 1e6
        return host_only(event)

    second = rewritten(plain, tmp_path / "second.json.gz", moved)
    alone, both = diagnose_paths([str(first)]), diagnose_paths([str(first), str(second)])
    assert both.problems[0].endswith(", whose device activity the profiler lost.")
    reported = [{use.name: use.duration.value for use in each.processes[0].case.categories} for each in (alone, both)]
    assert reported[1] == pytest.approx(reported[0], rel=0.02)


def test_operators_for_devices_only_tell_that_the_device_was_not_recorded() -> None:
    seen = {job: int(unseen_work(read(trace_of(DATA / job, 4))).sum()) for job in ("amp", "nanogpt", "chargpt")}
    assert seen["amp"] > 0
    assert seen["nanogpt"] > 0
    assert seen["chargpt"] == 0
    for job, device in (("amp", "NVIDIA H200 (not recorded)"), ("chargpt", "cpu (NVIDIA H200 idle, or not recorded)")):
        report = diagnose_paths([str(trace_of(DATA / job, 4))])
        assert report.environment.device == device
    assert "compute" not in {
        use.name for use in diagnose_paths([str(trace_of(DATA / "amp", 4))]).processes[0].case.categories
    }


def test_a_job_on_a_cpu_runs_no_operator_that_is_for_devices_only() -> None:
    torch = pytest.importorskip("torch")
    images, words = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(2, 4, 8, 16, requires_grad=True)
    models = torch.nn.Conv2d(3, 3, 3), torch.nn.BatchNorm2d(3)
    with torch.profiler.profile() as profile:
        for model in models:
            model(images).sum().backward()
        torch.nn.functional.scaled_dot_product_attention(words, words, words, is_causal=True).sum().backward()
        torch.nn.LSTM(16, 16)(words[0])
        logs = torch.randn(9, 2, 5).log_softmax(-1)
        torch.nn.functional.ctc_loss(logs, torch.ones(2, 3, dtype=torch.long), (9, 9), (3, 3))
    names = {event.name for event in profile.events()}
    assert len(names) > 50
    assert not [name for name in names if OPERATOR_ON_DEVICE.match(name)]


def test_a_trace_that_holds_all_is_as_it_was() -> None:
    for job in JOBS:
        trace = read(trace_of(DATA / job, 3))
        same, found = whole_steps(trace)
        assert same is trace
        assert found.lost == ""
        assert np.array_equal(found.boundaries, find_steps(trace).boundaries)
