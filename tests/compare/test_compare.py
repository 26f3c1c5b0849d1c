"""A comparison finds what was planted, says nothing of what is noise, and doubts what cannot be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report.stored_reports import (
    BUSY,
    QUIET,
    case_of,
    longer_by,
    step_of,
    stored,
    with_case,
    with_environment,
    with_loader,
    with_process,
)
from traces import DEVICE, STREAM, Events, kernel, launch, operator, step

from steptime.advice.evidence import CompilationUse
from steptime.advice.rules.memory import memory_leak
from steptime.advice.run_uses import HolderUse, MemoryUse, SegmentUse
from steptime.analysis.operators import OperatorUse
from steptime.compare.answer import answer_of
from steptime.compare.compare import compare
from steptime.compare.comparison import Comparison, DifferenceOutcome, Fate
from steptime.diagnosis import diagnose_paths, diagnose_traces
from steptime.quantities import BETWEEN_RUNS, Estimate, SourceLine, format_share, format_speed
from steptime.report import json as report_json
from steptime.report.compact import compact
from steptime.report.report import Report
from steptime.trace.reader import read

MS = 1e6


def compared(before: Report, after: Report, **more: object) -> Comparison:
    return compare((before, after), ("before", "after"), **more)  # type: ignore[arg-type]


def changed(comparison: Comparison) -> set[str]:
    return {part.name for part in comparison.parts if part.outcome in (DifferenceOutcome.MORE, DifferenceOutcome.LESS)}


# -- nothing happened ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [QUIET, QUIET[::-1]])
def test_two_runs_of_one_job_do_not_differ(names: tuple[str, str]) -> None:
    comparison = compared(*map(stored, names))
    assert comparison.step.outcome is DifferenceOutcome.NONE
    assert comparison.sentence.startswith("No difference found: ")
    assert comparison.settings == ()
    assert changed(comparison) == set()
    assert comparison.memory is not None
    assert comparison.memory.outcome is DifferenceOutcome.NONE
    assert comparison.pieces == ()


def test_a_report_does_not_differ_from_itself() -> None:
    comparison = compared(stored("quiet-1"), stored("quiet-1"))
    assert comparison.step.change is not None
    assert comparison.step.change.value == 0
    assert comparison.step.outcome is DifferenceOutcome.NONE


def test_alongside_other_programs_nothing_is_known() -> None:
    comparison = compared(*map(stored, BUSY))
    assert comparison.step.outcome is DifferenceOutcome.UNDECIDED
    assert comparison.sentence.startswith("No verdict: both runs shared the CPUs with other processes (")
    assert changed(comparison) == set()
    assert comparison.cause.sentence == ""


def test_one_busy_side_is_enough_to_doubt_even_a_step_of_three_times_the_length() -> None:
    comparison = compared(stored("quiet-1"), stored("busy-1"))
    assert comparison.step.outcome is DifferenceOutcome.UNDECIDED
    assert "the last run shared the CPUs with other processes" in comparison.sentence
    assert compared(stored("busy-1"), stored("quiet-1")).step.outcome is DifferenceOutcome.UNDECIDED


def test_a_single_step_says_nothing() -> None:
    before = stored("quiet-1")
    single = with_case(before, step=replace(case_of(before).step, steady=1))
    comparison = compared(before, longer_by(single, "python", step_of(before)))
    assert comparison.step.outcome is DifferenceOutcome.UNDECIDED
    assert "a single step" in comparison.sentence


# -- what was planted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("category", ["input", "compute", "overhead", "python", "sync"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_longer_category_is_found_and_carries_the_step(category: str, sign: int) -> None:
    short, before = stored("quiet-1"), stored("quiet-2")
    longer = longer_by(before, category, 12 * MS)
    comparison = compared(short, longer) if sign > 0 else compared(longer, short)
    expected = DifferenceOutcome.MORE if sign > 0 else DifferenceOutcome.LESS
    assert comparison.step.outcome is expected
    assert changed(comparison) == {category}
    assert comparison.parts[0].name == category
    assert comparison.cause.category == category
    change = comparison.step.change
    assert change is not None
    assert change.low < sign * 12 * MS < change.high
    assert ("longer" if sign > 0 else "shorter") in comparison.sentence


def test_parts_add_up_to_the_step() -> None:
    comparison = compared(stored("quiet-1"), longer_by(stored("quiet-2"), "python", 12 * MS))
    assert comparison.step.change is not None
    moved = sum(part.change.value for part in comparison.parts if part.change is not None)
    assert moved == pytest.approx(comparison.step.change.value, abs=1.0)


def test_a_difference_below_the_noise_between_runs_is_not_reported_as_one() -> None:
    before = stored("quiet-1")
    smaller = longer_by(before, "python", 0.5 * BETWEEN_RUNS * step_of(before))
    assert compared(before, smaller).step.outcome is DifferenceOutcome.NONE


def test_repeats_replace_the_assumed_noise() -> None:
    before = stored("quiet-1")
    after = longer_by(before, "python", 0.04 * step_of(before))
    near = [longer_by(before, "python", share * step_of(before)) for share in (0.001, 0.002)]
    far = [longer_by(before, "python", 0.2 * step_of(before))]
    assert compared(before, after, repeats=near).noise.measured
    assert compared(before, after, repeats=near).noise.noise_floor < BETWEEN_RUNS
    assert compared(before, after, repeats=near).step.outcome is DifferenceOutcome.MORE
    assert compared(before, after, repeats=far).noise.noise_floor == pytest.approx(0.2)
    assert compared(before, after, repeats=far).step.outcome is DifferenceOutcome.UNDECIDED


def test_drift_within_a_run_widens_the_interval() -> None:
    before = stored("quiet-1")
    steps = np.array(before.processes[0].step_ns, np.float64)
    drifting = with_process(before, step_ns=tuple((steps * np.linspace(0.7, 1.3, len(steps))).astype(int).tolist()))
    steady, adrift = compared(before, before).step.change, compared(before, drifting).step.change
    assert steady is not None
    assert adrift is not None
    assert adrift.high - adrift.low > 2 * (steady.high - steady.low)


# -- the cause -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "category", "setting"),
    [
        ({"workers": 4, "prefetch_factor": 2}, "input", "loader workers"),
        ({"collate_name": "pad_sequence"}, "input", "collate function"),
        ({"dataset": "Videos"}, "input", "dataset"),
    ],
)
def test_a_loader_explains_the_input(changes: dict[str, object], category: str, setting: str) -> None:
    before = stored("quiet-1")
    after = with_loader(longer_by(stored("quiet-2"), category, -20 * MS), **changes)
    comparison = compared(before, after)
    assert comparison.cause.setting == setting
    assert comparison.cause.category == category
    assert f"likely because of {setting}: " in comparison.sentence


def test_fewer_workers_do_not_explain_a_shorter_wait() -> None:
    before, after = with_loader(stored("quiet-1"), workers=4), stored("quiet-2")
    comparison = compared(before, longer_by(after, "input", -20 * MS))
    assert {setting.name for setting in comparison.settings} >= {"loader workers"}
    assert comparison.cause.setting != "loader workers"
    assert compared(before, longer_by(after, "input", 20 * MS)).cause.setting == "loader workers"


def test_another_device_explains_more_than_anything_else() -> None:
    after = with_loader(longer_by(stored("quiet-2"), "input", -20 * MS), workers=4)
    assert compared(stored("quiet-1"), after).cause.setting == "loader workers"
    moved = with_environment(after, device="NVIDIA H100")
    assert compared(stored("quiet-1"), moved).cause.setting == "device"


def test_a_loader_does_not_explain_what_python_does() -> None:
    after = with_loader(longer_by(stored("quiet-2"), "python", 20 * MS), workers=4)
    assert compared(stored("quiet-1"), after).cause.setting == ""


def doubled(duration: Estimate) -> Estimate:
    return replace(duration, value=2 * duration.value, low=2 * duration.low, high=2 * duration.high)


def test_a_new_line_explains_what_no_setting_does() -> None:
    after = longer_by(stored("quiet-2"), "python", 20 * MS)
    line = replace(case_of(after).lines[0], source=SourceLine("train.py", 9, "main", "metrics.update(loss)"))
    line = replace(line, role="python", duration=replace(line.duration, low=19 * MS, value=20 * MS, high=21 * MS))
    after = with_case(after, lines=(*case_of(after).lines[1:], line))
    comparison = compared(stored("quiet-1"), after)
    assert comparison.cause.piece == "metrics.update(loss)"
    assert "the line “metrics.update(loss)” appeared (20 ms per step)" in comparison.sentence


def test_lines_that_were_timed_in_slower_steps_have_not_shrunk() -> None:
    before, after = stored("quiet-1"), stored("quiet-1")
    slow = tuple(replace(each, duration=doubled(each.duration)) for each in case_of(before).lines)
    assert sum(each.duration.value for each in slow) > case_of(before).step.duration.value
    assert not [piece for piece in compared(with_case(before, lines=slow), after).pieces if piece.kind == "line"]


def test_a_commit_is_named_where_nothing_says_more() -> None:
    before = with_environment(stored("quiet-1"), commit="a" * 40, dirty=False)
    after = with_environment(longer_by(stored("quiet-2"), "compute", 20 * MS), commit="b" * 40, dirty=True)
    comparison = compared(before, after)
    assert comparison.cause.setting == "commit"
    assert "the commit: aaaaaaaaaa before, bbbbbbbbbb+ now" in comparison.sentence
    assert [run.commit for run in comparison.runs] == ["aaaaaaaaaa", "bbbbbbbbbb+"]


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"torch": "2.12.0"}, "software", "torch"),
        ({"python": "3.12.1"}, "software", "Python"),
        ({"device": "NVIDIA H100"}, "machine", "device"),
        ({"host": "other"}, "machine", "host"),
        ({"ranks": 8}, "machine", "ranks"),
        ({"command": "python slow_input.py --lr 0.1"}, "code", "command"),
    ],
)
def test_an_environment_that_differs_is_named(changes: dict[str, object], kind: str, name: str) -> None:
    comparison = compared(stored("quiet-1"), with_environment(stored("quiet-2"), **changes))
    assert [(setting.kind, setting.name) for setting in comparison.settings] == [(kind, name)]


def test_folders_of_programs_are_no_difference() -> None:
    one = with_environment(stored("quiet-1"), command="/opt/a/bin/python /home/ada/train.py --data=/data/x")
    other = with_environment(stored("quiet-2"), command="/opt/b/bin/python /home/bob/train.py --data=/data/x")
    assert compared(one, other).settings == ()


def test_a_compiled_model_is_a_setting_of_its_own() -> None:
    compilation = CompilationUse(SourceLine("train.py", 3, "forward"), 5_000_000, False)
    one = with_case(stored("quiet-1"), compilations=(compilation,))
    other = with_case(stored("quiet-2"), compilations=(compilation, replace(compilation, source=SourceLine("a.py", 1))))
    (setting,) = compared(one, other).settings
    assert (setting.name, setting.before, setting.after) == ("compiled functions", "1", "2")


def test_a_model_that_is_no_longer_compiled_explains_its_computing() -> None:
    compilation = CompilationUse(SourceLine("train.py", 3, "forward"), 5_000_000, False)
    before = with_case(stored("quiet-1"), compilations=(compilation,))
    comparison = compared(before, longer_by(stored("quiet-2"), "compute", 20 * MS))
    assert comparison.cause.setting == "compiled functions"
    assert [(each.before, each.after) for each in comparison.settings] == [("1", "0")]


def test_batches_of_another_size_are_compared_by_the_sample() -> None:
    before = stored("quiet-1")
    loader = case_of(before).loader
    assert loader is not None
    assert loader.batch_size is not None
    after = with_loader(longer_by(before, "compute", step_of(before)), batch_size=2 * loader.batch_size)
    comparison = compared(before, after)
    assert comparison.step.outcome is DifferenceOutcome.MORE
    assert comparison.cause.setting == "batch size"
    assert comparison.sample is not None
    assert comparison.sample.outcome is DifferenceOutcome.NONE
    assert comparison.sample.change is not None
    assert comparison.sample.change.value == pytest.approx(0, abs=1)


# -- pieces ----------------------------------------------------------------------------------------------------------


def test_operators_that_appear_and_vanish_are_named() -> None:
    before = stored("quiet-1")
    first, *others = case_of(before).operators
    new = OperatorUse("aten::cdist", 3.0, 5 * MS, "compute")
    comparison = compared(before, with_case(before, operators=(*others, new)))
    fates = {piece.name: piece.fate for piece in comparison.pieces if piece.kind == "operator"}
    assert fates == {first.name: Fate.VANISHED, "aten::cdist": Fate.APPEARED}


def test_trifles_are_left_out() -> None:
    before = stored("quiet-1")
    new = OperatorUse("aten::neg", 1.0, 0.001 * step_of(before), "memory")
    assert compared(before, with_case(before, operators=(*case_of(before).operators, new))).pieces == ()


def test_what_one_side_could_not_see_did_not_vanish() -> None:
    before = stored("quiet-1")
    assert {piece.kind for piece in compared(before, with_case(before, operators=())).pieces} <= {"line"}


# -- real traces and built ones --------------------------------------------------------------------------------------


def test_the_published_traces_differ_by_the_loaders_workers(shared_data: Path) -> None:
    folder = shared_data / "kineto"
    paths = [str(folder / f"resnet50_workers{count}.pt.trace.json.gz") for count in (0, 4)]
    reports = [diagnose_paths([path], cache=False) for path in paths]
    comparison = compared(*reports)
    (setting,) = comparison.settings
    assert (setting.kind, setting.name, setting.after) == ("loader", "loader workers", "worker processes")
    assert setting.before.startswith("0 ")
    assert comparison.cause.setting == "loader workers"
    assert comparison.cause.category == "input"
    assert "likely because of loader workers: 0 (read in the training process) before" in comparison.sentence
    inputs = next(part for part in comparison.parts if part.name == "input")
    assert inputs.outcome is DifferenceOutcome.LESS
    assert inputs.change is not None
    assert inputs.change.value == pytest.approx(-58.1 * MS, rel=0.01)
    assert {reported.code for reported in comparison.findings if reported.fate is Fate.VANISHED} == {"ST101"}
    compute = next(part for part in comparison.parts if part.name == "compute")
    assert compute.outcome is DifferenceOutcome.NONE


def traced(folder: Path, name: str, softmax: float, *, extra: bool = False) -> Report:
    """Eight steps of 1 ms: a matrix product of 400 µs, a softmax of so many µs, another kernel of 200 µs."""
    events: Events = []
    for number in range(8):
        start = number * 1000.0
        events.append(step(start, start + 1000, number))
        place = start + 10
        kernels = [("sgemm", "aten::mm", 400.0), ("softmax", "aten::softmax", softmax + 3 * (number % 3))]
        kernels += [("dropout", "aten::dropout", 200.0)] if extra else []
        for offset, (kernel_name, operator_name, length) in enumerate(kernels):
            correlation = 10 * number + offset + 1
            events.append(operator(operator_name, start + 5 * offset + 1, start + 5 * offset + 5))
            events.append(launch(correlation, start + 5 * offset + 2, start + 5 * offset + 4))
            events.append(kernel(correlation, place, place + length, kernel_name, STREAM, DEVICE))
            place += length
    path = folder / f"{name}.json"
    path.write_text(report_json_of(events))
    return diagnose_traces([read(path)], name)


def report_json_of(events: Events) -> str:
    import json

    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def test_kernels_that_appear_and_grow_are_found_in_traces(tmp_path: Path) -> None:
    before = traced(tmp_path, "before", 100.0)
    after = traced(tmp_path, "after", 250.0, extra=True)
    comparison = compared(before, after)
    kernels = {piece.name: piece for piece in comparison.pieces if piece.kind == "kernel"}
    assert kernels["dropout of aten::dropout"].fate is Fate.APPEARED
    assert kernels["dropout of aten::dropout"].change == pytest.approx(200_000)
    assert kernels["softmax of aten::softmax"].fate is Fate.GREW
    assert kernels["softmax of aten::softmax"].change == pytest.approx(150_000)
    assert "sgemm of aten::mm" not in kernels
    compute = next(part for part in comparison.parts if part.name == "compute")
    assert compute.outcome is DifferenceOutcome.MORE
    assert compute.change is not None
    assert compute.change.value == pytest.approx(350_000, rel=0.01)


def test_a_recording_and_a_trace_are_compared_with_a_caveat() -> None:
    trace = with_case(stored("quiet-2"), step=replace(case_of(stored("quiet-2")).step, mode="trace"))
    (caveat,) = compared(stored("quiet-1"), trace).caveats
    assert "profiler's trace" in caveat


def test_a_job_that_was_not_profiled_is_compared_by_its_phases() -> None:
    after = stored("quiet-2")
    unsplit = with_case(after, categories=case_of(after).phases)
    comparison = compared(stored("quiet-1"), unsplit)
    assert comparison.by == "phases"
    assert {part.name for part in comparison.parts} >= {"forward", "backward", "optimizer"}
    assert comparison.caveats


# -- three and more --------------------------------------------------------------------------------------------------


def test_of_several_runs_the_level_that_changed_is_reported() -> None:
    quiet = [stored("quiet-1"), stored("quiet-2"), stored("quiet-1")]
    slow = [longer_by(report, "python", 15 * MS) for report in quiet]
    comparison = compare((*quiet, *slow), [f"run-{number}" for number in range(6)])
    assert comparison.trend is not None
    (level,) = comparison.trend.levels
    assert (level.run, level.confirmed) == (3, True)
    assert "from run 4 on" in comparison.trend.sentence
    assert comparison.trend.slope is not None
    assert comparison.trend.slope.value == pytest.approx(0.053, abs=0.01)
    assert [run.against_first is None for run in comparison.runs] == [True, *[False] * 5]
    outcomes = [run.against_first.outcome for run in comparison.runs if run.against_first is not None]
    assert outcomes == [DifferenceOutcome.NONE] * 2 + [DifferenceOutcome.MORE] * 3


def test_of_several_equal_runs_nothing_is_reported() -> None:
    reports = [stored(name) for name in (*QUIET, *QUIET)]
    comparison = compare(reports, ["a", "b", "c", "d"])
    assert comparison.trend is not None
    assert comparison.trend.levels == ()
    assert "shows no change" in comparison.trend.sentence


def test_a_report_that_was_saved_is_compared_like_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_text(report_json.render(stored("quiet-1")))
    saved = diagnose_paths([str(path)])
    assert compared(saved, stored("quiet-2")) == compared(stored("quiet-1"), stored("quiet-2"))


def test_one_report_alone_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="two reports"):
        compare((stored("quiet-1"),), ("a",))


# -- what the field's guides compare ---------------------------------------------------------------------------------


def leaking(report: Report, growth: float | None, *, grows: bool = True) -> Report:
    slope = None if growth is None else Estimate(growth, 0.9 * growth, 1.1 * growth, 40, "bytes")
    memory = MemoryUse("cpu", 1 << 30, growth=slope, grows=grows and bool(growth), grown=1 << 20)
    return with_case(report, memory=memory)


def test_kernels_of_a_step_are_counted_before_and_after() -> None:
    case = case_of(stored("quiet-1"))
    fused = with_case(stored("quiet-2"), operators=case.operators[:1])
    (before,) = {round(sum(use.calls for use in case.operators))}
    head = answer_of(compared(stored("quiet-1"), fused)).head
    assert f"Kernels per step (on a CPU, operators): {before:,} → {case.operators[0].calls:,.0f}" in head


def test_a_leak_that_is_gone_is_said_to_be() -> None:
    one, other = leaking(stored("quiet-1"), 0.98 * (1 << 20)), leaking(stored("quiet-2"), 2048.0, grows=False)
    assert "Memory growth: 0.98 MiB/step → none for certain" in answer_of(compared(one, other)).head
    assert "Memory growth: 0.98 MiB/step → 0.98 MiB/step" in answer_of(compared(one, one)).head
    unknown = leaking(stored("quiet-2"), None)
    assert not any("growth" in each for each in answer_of(compared(one, unknown)).head), "too short to tell"


def test_a_leaks_next_command_confirms_that_it_is_gone() -> None:
    case = case_of(stored("quiet-1"))
    holder = HolderUse("variable", "total_loss", 3.0, 4096.0, graph=True, source=SourceLine("train.py", 12))
    leak = memory_leak(replace(case, memory=MemoryUse("cpu", 1 << 30, holders=(holder,))))
    report = with_process(stored("quiet-1"), findings=leak)
    (found,) = compact(report).findings
    command = report.environment.command
    assert found.next.startswith(f"steptime run --recording {report.source}-changed -- {command} && steptime compare ")


def test_a_change_of_the_step_is_told_of_the_run_too() -> None:
    before, after = stored("quiet-1"), longer_by(stored("quiet-2"), "input", -20e6)
    step, later = (case_of(each).step.duration.value for each in (before, after))
    rollouts = [SegmentUse("rollout", 4, int(4 * 5 * step), share, every=5.0) for share in (0.5, 0.6)]
    one, other = (with_case(each, segments=(use,)) for each, use in zip((before, after), rollouts, strict=True))
    (line,) = (each for each in answer_of(compared(one, other)).head if "of the run" in each)
    share = 5 * step / (5 * step + 5 * later)
    assert f"Steps are {format_share(1 - share)} of the run" in line
    assert line.endswith(f"per step with rollouts between the steps: some {format_speed(2 * step / (step + later))}")
    assert any("after: steps are" in each for each in answer_of(compared(before, other)).head)
    assert not any("of the run" in each for each in answer_of(compared(before, after)).head)
