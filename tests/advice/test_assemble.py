"""From a hand-built recording to the case that rules look at."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from journals import MS, US, JournalBuilder

from steptime.advice.assemble import assemble
from steptime.advice.device_uses import GpuUse
from steptime.advice.engine import examine
from steptime.advice.evidence import Case, LineUse
from steptime.advice.line_evidence import line_uses
from steptime.advice.outliers import usual_steps
from steptime.advice.step_evidence import waste
from steptime.advice.verdict import verdict
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.operators import OperatorUse
from steptime.analysis.recorded_breakdown import RecordedBreakdown
from steptime.intervals import union
from steptime.journal import Flag, Kind, busy_flags
from steptime.machine.machine import Machine, Rate
from steptime.quantities import Estimate
from steptime.recording.recording import DeviceSample, Process, TelemetrySample
from steptime.recording.rule_facts import RuleFacts

WORKERS = {"workers": 2, "batch_size": 4, "dataset": "Pictures", "collate": "default_collate"}
SETTINGS = {"intra_op_threads": 2, "inter_op_threads": 1, "usable_cpus": 2, "logical_cpus": 8}


def case_of(process: Process, **more: object) -> Case:
    found = assemble(process, lay_out_whole(process), **more)  # type: ignore[arg-type]
    assert msgspec.json.encode(found), "no number of numpy's is in it, which no report could hold"
    return found


def epochs(job: JournalBuilder, count: int = 3, steps: int = 20, behind: tuple[int, ...] = ()) -> JournalBuilder:
    """behind: ns by which the backwards of the first steps of each epoch are longer."""
    for epoch in range(count):
        iterator = 10 + epoch
        job.fact("loader", identity=iterator, loader=1, **WORKERS).start(30 * MS, iterator)
        for number in range(steps):
            start = job.now
            job.next((12 if number == 0 else 2) * MS, iterator)
            for worker in range(2):
                job.worker(Kind.FETCH, start, start + 8 * MS, iterator, worker)
                job.worker(Kind.COLLATE, start + 8 * MS, start + 9 * MS, iterator, worker)
            slower = behind[number] if number < len(behind) else 0
            job.forward(5 * MS).backward(8 * MS + slower).step(2 * MS).wait(3 * MS)
        job.next(1 * MS, iterator, exhausted=True)
    return job


def test_the_loader_as_configured_and_as_measured(tmp_path: Path) -> None:
    job = epochs(JournalBuilder()).fact("settings", **SETTINGS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert (loader.dataset, loader.workers, loader.batch_size, loader.usable_cpus) == ("Pictures", 2, 4, 2)
    assert loader.item is not None
    assert loader.item.value == 2 * MS
    assert loader.collate is not None
    assert loader.collate.value == 1 * MS
    assert loader.demand == 1
    # What an epoch's first batch takes longer, and the end of its workers, belong to the start, not to the wait.
    assert loader.start is not None
    assert loader.start.value == (30 + 10 + 1) * MS
    assert (loader.starts, loader.steps_per_start) == (2, 20.0)
    assert loader.wait.value == pytest.approx(2 * MS)


def test_facts_for_rules_are_in_the_case_as_they_were_written(tmp_path: Path) -> None:
    job = epochs(JournalBuilder())
    job.fact("padding", share=0.25, batches=3)
    job.fact("called", file="train.py", line=7, names=["builtins.print"])
    job.fact("function", file="train.py", function="train", first_line=3, text="def train():\n    print()\n")
    job.fact("tracer", kind="trace", tool="pdb")
    process = job.process(tmp_path / "recording")
    case = case_of(process)
    assert case.has("tracers")
    assert case.has("padding")
    assert case.has("called")
    assert case.has("texts")
    for each in fields(RuleFacts):
        assert getattr(case, each.name) == getattr(process, each.name), each.name


def test_the_share_of_work_is_that_of_the_batches_whose_cpu_time_was_measured(tmp_path: Path) -> None:
    job = epochs(JournalBuilder()).fact("settings", **SETTINGS)
    assert (loader := case_of(job.process(tmp_path / "old")).loader) is not None
    assert (loader.busy, loader.batches) == (None, None)
    job = JournalBuilder().fact("settings", **SETTINGS)
    job.fact("loader", identity=10, loader=1, **WORKERS, dataset_length=82)
    for number in range(20):
        sampled = number % 2
        with job.within(Kind.LOADER_NEXT, 10):
            job.span(Kind.FETCH, 8 * MS, 10, busy_flags(2, 8) if sampled else 0)
            job.span(Kind.COLLATE, 2 * MS, 10, busy_flags(2, 2) if sampled else 0)
        job.forward(5 * MS).backward(8 * MS).step(2 * MS)
    loader = case_of(job.process(tmp_path / "new")).loader
    assert loader is not None
    assert loader.busy == pytest.approx((2 + 2) / 10, abs=0.01)
    assert loader.batches == 21


def test_what_a_start_leaves_to_the_steps_behind_it_is_not_part_of_any_wait(tmp_path: Path) -> None:
    job = epochs(JournalBuilder(), 4, behind=(9 * MS, 2 * MS)).fact("settings", **SETTINGS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.start is not None
    assert loader.start.value == (30 + 10 + 1) * MS
    assert loader.settling == pytest.approx(11 * MS)


def test_what_the_loop_itself_does_at_the_end_of_an_epoch_is_not_the_workers(tmp_path: Path) -> None:
    job = JournalBuilder().fact("settings", **SETTINGS)
    for _ in range(4):
        epochs(job, 1).wait(9 * MS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.settling == 0


@pytest.mark.parametrize("steps", [2, 3])
def test_epochs_too_short_to_tell_a_steps_usual_length_tell_nothing_of_its_settling(tmp_path: Path, steps: int) -> None:
    job = epochs(JournalBuilder(), 20, steps, behind=(9 * MS, 2 * MS)).fact("settings", **SETTINGS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.settling == (0 if steps == 2 else pytest.approx(11 * MS))


@pytest.mark.parametrize(("makers", "anew"), [((1, 2, 3), True), ((1, 1, 1), False), ((None, None, None), False)])
def test_a_loader_that_each_epoch_makes_is_reported(tmp_path: Path, makers: tuple[int | None, ...], anew: bool) -> None:
    job = JournalBuilder()
    for epoch, maker in enumerate(makers):
        job.fact("loader", identity=epoch, loader=1, made_by=maker, **WORKERS)
        job.start(30 * MS, epoch)
        for _ in range(8):
            job.next(2 * MS, epoch).forward(5 * MS).backward(8 * MS).step(2 * MS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.made_anew == anew


def test_epochs_that_start_unwatched_tell_how_often_they_start_and_not_how_long_it_takes(tmp_path: Path) -> None:
    job = JournalBuilder()
    for epoch in range(6):
        job.fact("loader", identity=epoch, loader=1, **WORKERS)
        unseen = epoch in (2, 3)
        start = job.now
        job.start(30 * MS, epoch)
        for number in range(10):
            if unseen:
                job.wait((12 if number == 0 else 2) * MS)
            else:
                job.next((12 if number == 0 else 2) * MS, epoch)
            if not unseen:
                job.forward(5 * MS).backward(8 * MS)
            else:
                job.wait(13 * MS)
            job.step(2 * MS)
        if unseen:
            job.record(Kind.UNTIMED, start, job.now)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.start is not None
    assert loader.start.value == (30 + 10) * MS
    assert loader.steps_per_start == 10.0


def test_items_read_in_the_training_process_count_too(tmp_path: Path) -> None:
    job = JournalBuilder().fact("loader", identity=1, loader=1, batch_size=8, dataset="Numbers", workers=0)
    for _ in range(12):
        with job.within(Kind.LOADER_NEXT, 1):
            job.span(Kind.FETCH, 16 * MS, 1).span(Kind.COLLATE, 4 * MS, 1)
        job.forward(5 * MS).backward(8 * MS).step(2 * MS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.item is not None
    assert (loader.item.value, loader.wait.value) == (2 * MS, 20 * MS)


def test_a_collection_while_a_batch_is_made_counts_for_the_collector(tmp_path: Path) -> None:
    job = JournalBuilder().fact("loader", identity=1, loader=1, batch_size=8, dataset="Numbers", workers=0)
    for number in range(40):
        with job.within(Kind.LOADER_NEXT, 1):
            job.span(Kind.FETCH, 16 * MS, 1)
            start = job.now
            if number % 10 == 5:
                with job.within(Kind.COLLATE, 1):
                    job.wait(2 * MS).span(Kind.GARBAGE, 50 * MS).wait(2 * MS)
            else:
                job.span(Kind.COLLATE, 4 * MS, 1)
            assert job.now - start in (4 * MS, 54 * MS)
        job.forward(5 * MS).backward(8 * MS).step(2 * MS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.item is not None
    assert loader.collate is not None
    assert (loader.item.value, loader.collate.value) == (2 * MS, 4 * MS)
    assert loader.collector > 4 * MS
    assert loader.wait.value == pytest.approx(20 * MS + loader.collector)


def test_phases_and_categories_sum_to_the_step(tmp_path: Path) -> None:
    process = epochs(JournalBuilder()).process(tmp_path / "recording")
    case = case_of(process)
    assert sum(use.duration.value for use in case.phases) == pytest.approx(case.step.duration.value)
    assert sum(use.duration.value for use in case.categories) == pytest.approx(case.step.duration.value)
    assert {use.name for use in case.categories} >= {
        "input",
        "forward",
        "backward",
        "optimizer",
    }  # nothing was profiled
    steps = lay_out_whole(process).timeline.steps
    wall = steps.duration[steps.steady]
    entries = np.zeros((len(wall), len(Category)), np.int64)
    entries[:, Category.COMPUTE], entries[:, Category.INPUT] = wall - 2 * MS, 2 * MS
    nothing = np.zeros(0, np.int64)
    recorded = RecordedBreakdown(Breakdown("cpu", wall, entries), (), nothing, nothing, (), ())
    uses = {use.name: use for use in case_of(process, recorded=recorded).categories}
    assert set(uses) == {"compute", "input"}
    assert uses["input"].recoverable == uses["input"].duration
    assert uses["compute"].recoverable.value == 0  # no peaks, no waste


def test_waste_is_what_lies_above_the_roofline() -> None:
    def known(value: float) -> Estimate:
        return Estimate(value, value, value, 3)

    machine = Machine("cpu", "box", (Rate("float32", known(1e12)),), known(1e10))
    operators = (
        OperatorUse("mm", 1, 4e6, "compute", flops=1e9, bytes=1e6),  # 1 ms of arithmetic
        OperatorUse("relu", 1, 4e6, "memory", bytes=3e7),  # 3 ms of bytes
        OperatorUse("custom", 1, 2e6, "unmodelled"),
    )
    assert waste(operators, machine) == pytest.approx((2.75e6 + 1e6) / 10e6), "a good kernel reaches 0.8 of its peak"
    assert waste(operators, machine, left=0.5) == pytest.approx(1.5e6 / 10e6), "others had half of the CPUs"
    assert waste(operators, None) == 0


def test_a_lone_stall_of_the_machine_does_not_speak_for_the_job(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(101):
        job.next(MS).forward((900 if number == 50 else 5) * MS).backward(8 * MS).step(2 * MS)
    process = job.process(tmp_path / "recording")
    layout = lay_out_whole(process)
    assert layout.timeline.steps.steady[50]
    assert 50 not in usual_steps(layout)
    assert case_of(process).step.duration.value == 16 * MS


@pytest.mark.parametrize("phase", ["loader", "forward"])
def test_a_rare_collection_of_all_objects_speaks_for_the_job(tmp_path: Path, phase: str) -> None:
    """One of 400 ms in a hundred steps is 4 ms per step, which nobody would see if it counted as a stall."""
    job = JournalBuilder()
    for number in range(101):
        collection = 400 * MS if number == 50 else 0
        start = job.now
        job.next(MS + (collection if phase == "loader" else 0))
        start = start if phase == "loader" else job.now
        job.forward(5 * MS + (collection if phase == "forward" else 0))
        job.backward(8 * MS).step(2 * MS)
        if collection:
            job.record(Kind.GARBAGE, start, start + collection)
    process = job.process(tmp_path / "recording")
    layout = lay_out_whole(process)
    case = case_of(process)
    steady = int(layout.timeline.steps.steady.sum())
    assert 50 in usual_steps(layout)
    assert case.garbage is not None
    assert case.garbage.duration.value == pytest.approx(400 * MS / (~layout.timeline.steps.warm_up).sum())
    assert case.garbage.category == ("input" if phase == "loader" else "python")
    assert case.step.duration.value == pytest.approx(16 * MS + 400 * MS / steady)


def test_stalls_of_the_model_are_the_machines(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(101):
        stalled = number in (9, 11, 17, 30, 34, 41, 52, 53, 66, 71, 85, 96)
        job.next(MS).forward((40 if stalled else 5) * MS).backward(8 * MS).step(2 * MS)
    assert case_of(job.process(tmp_path / "recording")).step.duration.value == 16 * MS


def test_batches_of_an_iterator_from_before_an_attach_are_not_missing_from_a_step(tmp_path: Path) -> None:
    job = JournalBuilder().fact("loader", identity=7, loader=1, **WORKERS)
    for number in range(60):
        job.next(MS, 3 if number < 20 else 7).forward(5 * MS).backward(8 * MS).step(2 * MS)
    loader = case_of(job.process(tmp_path / "recording")).loader
    assert loader is not None
    assert loader.demand == 1


def test_steps_that_are_slow_every_fifth_time_are_the_jobs(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(101):
        job.next(MS).forward((40 if number % 5 == 4 else 5) * MS).backward(8 * MS).step(2 * MS)
    case = case_of(job.process(tmp_path / "recording"))
    assert case.period is not None
    assert (case.period.every, case.period.extra) == (5, 35 * MS)
    assert case.step.duration.value == 23 * MS


def test_the_line_of_steps_that_are_slow_in_their_turn_is_reported_with_its_part(tmp_path: Path) -> None:
    """Every fifth step draws for 24 ms and saves the drawing for 11 ms; one of six that were timed by line is slow."""
    texts = ("drawn = draw(out)", "drawn.save(path)", "lost.append(loss.item())", "pass")
    lines = [{"line": 7 + number, "text": text, "stores": [], "loads": []} for number, text in enumerate(texts)]
    job = JournalBuilder().fact("code", base=1, file="job.py", function="main", first_line=7, loop=True, lines=lines)
    start = 0
    for number in range(101):
        start = job.now if number == 20 else start
        job.next(MS).forward(5 * MS).backward(8 * MS).step(2 * MS)
        slow = ((1, 24 * MS), (2, 11 * MS)) if number % 5 == 4 else ()
        for identity, duration in (*slow, (3, MS), (4, 0)):  # the clock sees nothing of the last one
            job.wait(duration)
            if 20 <= number < 26:
                job.record(Kind.LINE, job.now - duration, job.now, identity)
        if number == 25:
            job.record(Kind.LINES, start, job.now)
    period = case_of(job.process(tmp_path / "recording")).period
    assert period is not None
    assert period.line is not None
    assert (period.every, period.extra, period.line.text) == (5, 35 * MS, "drawn = draw(out)")
    assert period.line_share == pytest.approx(24 / 35)


@pytest.mark.parametrize(("second", "kept"), [(100, False), (20, True)])
def test_lines_of_a_first_training_do_not_speak_for_a_second_one(tmp_path: Path, second: int, kept: bool) -> None:
    """A teacher is trained in a loop whose lines are timed, then a student in another one."""
    lines = [{"line": 7, "text": "lost.append(loss.item())", "stores": [], "loads": []}]
    job = JournalBuilder().fact("code", base=1, file="job.py", function="main", first_line=7, loop=True, lines=lines)
    start = 0
    for number in range(50 + second):
        start = job.now if number == 20 else start
        job.next(MS).forward(5 * MS).backward(8 * MS).step(2 * MS, 2 if number >= 50 else 1)
        job.wait(MS)
        if 20 <= number < 26:
            job.record(Kind.LINE, job.now - MS, job.now, 1)
        if number == 25:
            job.record(Kind.LINES, start, job.now)
    assert bool(case_of(job.process(tmp_path / "recording")).lines) is kept


@pytest.mark.parametrize("others", [(), ("__main__.log",)])
def test_a_callback_that_counts_the_steps_itself_is_the_line_where_nothing_else_is_called(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    texts = ("loss.backward()", "paint(step, out)", "log(loss)")
    lines = [{"line": 7 + number, "text": text, "stores": [], "loads": []} for number, text in enumerate(texts)]
    job = JournalBuilder().fact("code", base=1, file="job.py", function="main", first_line=7, loop=True, lines=lines)
    job.fact("called", file="job.py", line=7, names=["torch._tensor.Tensor.backward"])
    job.fact("called", file="job.py", line=8, names=["torch.Tensor.detach", "__main__.Painter.__call__"])
    job.fact("called", file="job.py", line=9, names=["builtins.print", *others])
    for number in range(101):
        job.next(MS).forward(5 * MS).backward(8 * MS).step(2 * MS).wait((40 if number % 5 == 4 else 1) * MS)
    period = case_of(job.process(tmp_path / "recording")).period
    assert period is not None
    assert (period.every, period.phase) == (5, "rest")
    assert (period.line.text if period.line is not None else None) == (None if others else "paint(step, out)")


def test_shapes_that_vary_are_the_jobs(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(101):
        job.next(MS).forward((1 + number % 10) ** 2 * MS).backward(8 * MS).step(2 * MS)
    assert case_of(job.process(tmp_path / "recording")).step.duration.value == pytest.approx((11 + 38.5) * MS)


def test_a_late_batch_now_and_then_speaks_for_the_job(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(101):
        job.next((101 if number % 10 == 5 else 1) * MS).forward(5 * MS).backward(8 * MS).step(2 * MS)
    assert case_of(job.process(tmp_path / "recording")).step.duration.value == 26 * MS


@pytest.mark.parametrize("phase", ["loader", "rest"])
def test_a_few_steps_of_ten_times_the_length_stand_alongside_the_usual_one(tmp_path: Path, phase: str) -> None:
    """A late batch is how the job runs and stays in the mean; what else a step does now and then is no usual step."""
    job = JournalBuilder()
    for number in range(23):
        long = 180 * MS if number in (5, 12, 20) else 0
        job.next(MS + (long if phase == "loader" else 0)).forward(5 * MS).backward(8 * MS)
        job.wait(long if phase == "rest" else 0).step(2 * MS)
    case = case_of(job.process(tmp_path / "recording"))
    assert case.outliers is not None
    assert (case.outliers.count, case.outliers.part) == (3, {"loader": "input"}.get(phase, phase))
    assert (case.outliers.usual, case.outliers.growth) == (16 * MS, 180 * MS)
    assert (case.step.duration.value == 16 * MS) == (phase == "rest") == (case.outliers.left_out == 3)


def test_what_lies_between_steps_is_a_share_of_the_run_without_what_steptime_held(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(40):
        if number in (10, 15, 20, 30):
            job.span(Kind.CHECKPOINT, 100 * MS)
        if number == 25:
            job.span(Kind.PAUSE, 900 * MS)
        job.forward(4 * MS).backward(5 * MS).step(MS)
    (saved,) = case_of(job.process(tmp_path / "recording")).segments
    assert (saved.kind, saved.count, saved.every) == ("checkpoint", 4, 5)
    assert saved.share == pytest.approx(400 / (390 + 400), rel=0.03)


@pytest.mark.parametrize("look", [Kind.PROFILED, Kind.UNTIMED, Kind.LINES])
def test_a_second_phase_is_said_though_the_probe_looks_then(tmp_path: Path, look: Kind) -> None:
    """One long step of another optimizer at the end: no steady step, but most of the run."""
    job = JournalBuilder().fact("optimizer", identity=2, type="LBFGS", parameters=3, elements=100)
    for _ in range(20):
        job.forward(5 * MS).backward(8 * MS).step(2 * MS).wait(1 * MS)
    start = job.now
    if look is Kind.UNTIMED:
        job.wait(8000 * MS).record(Kind.BOUNDARY, job.now, job.now)
    else:
        job.forward(5 * MS).backward(8 * MS).step(8000 * MS, 2)
    job.record(look, start, job.now, *((1,) if look is Kind.PROFILED else ()))
    case = case_of(job.process(tmp_path / "recording"))
    assert case.outliers is not None
    assert (case.outliers.count, case.outliers.steps, case.outliers.left_out) == (1, 21, 1)
    what = "their parts were not timed" if look is Kind.UNTIMED else "LBFGS, which steps in no other"
    assert re.match(rf"1 of 21 steps took 8\.\d+ s, .* excluded here: {what}\.", verdict(case).sentence)


@pytest.mark.parametrize(
    ("fact", "repeated", "frozen"),
    [
        (("written", {"identity": 1}), 4.0, True),
        (("written", {"identity": 2}), 4.0, False),
        (("without_gradients", {"identity": 1, "calls": 4, "same": 4}), 4.0, True),
        (("without_gradients", {"identity": 1, "calls": 4, "same": 1}), 1.0, True),
        (("without_gradients", {"identity": 1, "calls": 4, "same": 0}), 0.0, True),
    ],
)
def test_a_forward_without_gradients_is_needed_on_other_inputs_or_with_other_weights(
    tmp_path: Path, fact: tuple[str, dict[str, int]], repeated: float, frozen: bool
) -> None:
    job = JournalBuilder().fact(fact[0], **fact[1])
    for _ in range(20):
        job.forward(4 * MS, 1, gradient=False).forward(4 * MS, 2, gradient=False).forward(5 * MS, 1)
        job.backward(8 * MS).step(2 * MS)
    case = case_of(job.process(tmp_path / "recording"))
    assert (case.repeated.duration.value if case.repeated is not None else 0.0) == repeated * MS
    assert (case.frozen is not None) is frozen


def test_a_site_at_each_forward_is_called_as_often_as_forwards_run(tmp_path: Path) -> None:
    job = JournalBuilder()
    for line, count in ((5, 4), (9, 1)):  # at each of two forwards twice, and once a step
        site = {"file": "train.py", "line": line, "function": "act", "text": ""}
        job.fact("site", name="item", device="cpu", count=count, steps=1, forwards=2, site=site)
    for _ in range(20):
        for _ in range(5):
            job.forward(4 * MS, 1)
        job.backward(8 * MS).step(2 * MS)
    case = case_of(job.process(tmp_path / "recording"))
    assert [each.calls for each in case.sites] == [10.0, 1.0]
    assert json.loads(msgspec.json.encode(case.sites))[0]["calls"] == 10.0


def test_the_line_of_a_frozen_model_is_the_one_that_runs_no_trained_one(tmp_path: Path) -> None:
    """Both models are called by one line of a function: the loop's line says which of them it is."""
    texts = ("chosen = scores(model, batch)", "wanted = scores(reference, batch)", "return model(batch)")
    lines = [{"line": at, "text": text, "stores": [], "loads": []} for at, text in enumerate(texts, 10)]
    job = JournalBuilder().fact("code", base=100, file="job.py", function="main", first_line=10, loop=True, lines=lines)
    for number in range(20):
        for at, reference in enumerate((False, True)):
            start = job.wait(US).now
            job.wait(2 * US).forward((4 if reference else 5) * MS, 1 + reference, gradient=not reference).wait(2 * US)
            if number in (5, 6):
                job.record(Kind.LINE, start + US, job.now - US, 102).record(Kind.LINE, start, job.now, 100 + at)
        if number == 9:
            job.evaluate(30 * MS, 1)
        job.backward(8 * MS).step(2 * MS)
    case = case_of(job.process(tmp_path / "recording"))
    assert case.frozen is not None
    assert case.frozen.source is not None
    assert (case.frozen.source.text, case.frozen.calls, case.frozen.steps) == (texts[1], 1.0, 1.0)
    assert case.frozen.duration.value == 4 * MS
    assert "frozen-forward" in {each.name for each in examine(case).findings}


def test_outliers_are_counted_once(tmp_path: Path) -> None:
    """Steps as long as the ones left out, but by their wait for input, stay in the mean and are not counted."""
    job = JournalBuilder()
    for number in range(120):
        late = 180 * MS if number in (30, 50, 70, 90) else 0
        job.next(MS + late).forward(5 * MS).backward(8 * MS)
        job.wait(180 * MS if number in (40, 60) else 0).step(2 * MS)
    outliers = case_of(job.process(tmp_path / "recording")).outliers
    assert outliers is not None
    assert (outliers.count, outliers.left_out, outliers.numbers) == (2, 2, (41, 61))


@pytest.mark.parametrize(("more", "numbers"), [(120, (41, 61, 81)), (2, ())])
def test_a_step_with_a_checkpoint_is_long_by_what_else_it_does(
    tmp_path: Path, more: int, numbers: tuple[int, ...]
) -> None:
    job = JournalBuilder()
    for number in range(100):
        job.next(MS).forward(5 * MS).backward(8 * MS)
        if number in (40, 60, 80):
            job.wait(more * MS).span(Kind.CHECKPOINT, 300 * MS)
        job.step(2 * MS)
    outliers = case_of(job.process(tmp_path / "recording")).outliers
    assert (outliers.numbers if outliers is not None else ()) == numbers


@pytest.mark.parametrize(("times", "count"), [(200, 0), (800, 1)])
def test_a_step_whose_lines_are_timed_is_long_for_that(tmp_path: Path, times: int, count: int) -> None:
    job = JournalBuilder()
    for number in range(60):
        start = job.now
        job.next(MS * (times if number == 9 else 1)).forward(MS).backward(MS).step(MS)
        if number == 9:
            job.record(Kind.LINES, start, job.now, 0)
    outliers = case_of(job.process(tmp_path / "recording")).outliers
    assert (outliers.count if outliers is not None else 0) == count


def test_settings_see_switches_that_a_backward_saw(tmp_path: Path) -> None:
    job = JournalBuilder().fact("settings", **SETTINGS)
    for number in range(10):
        job.forward(MS).backward(MS, Flag.ANOMALY if number > 4 else 0).step(MS)
    settings = case_of(job.process(tmp_path / "recording"), trainers_on_host=2).settings
    assert settings is not None
    assert (settings.detect_anomaly, settings.deterministic, settings.profiler) == (True, False, False)
    assert settings.trainers_on_host == 2


@pytest.mark.parametrize(("seen_by", "is_on"), [(10, True), (1, False)])
def test_a_profiler_is_the_jobs_when_most_backwards_see_it(tmp_path: Path, seen_by: int, is_on: bool) -> None:
    job = JournalBuilder().fact("settings", **SETTINGS)
    for number in range(10):
        job.forward(MS).backward(MS, Flag.PROFILER if number >= 10 - seen_by else 0).step(MS)
    settings = case_of(job.process(tmp_path / "recording")).settings
    assert settings is not None
    assert settings.profiler is is_on


def test_optimizers_by_their_own_time(tmp_path: Path) -> None:
    job = JournalBuilder()
    job.fact("optimizer", identity=1, type="Adam", parameters=3, elements=100)
    for _ in range(10):
        job.forward(MS).backward(MS).step(4 * MS, 1)
        with job.within(Kind.OPTIMIZER_STEP, 2):
            job.wait(2 * MS).forward(MS).backward(MS).wait(MS)  # a closure, and the update behind it
    first, second = case_of(job.process(tmp_path / "recording")).optimizers
    assert (first.type, first.duration.value, first.dense_embedding_elements) == ("Adam", 4 * MS, 0)
    assert (second.type, second.duration.value) == ("", 1 * MS)


def test_segments_garbage_and_compilations(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(40):
        if number == 20:
            job.span(Kind.CHECKPOINT, 90 * MS)
        job.forward(MS)
        if number % 4 == 0:
            job.span(Kind.GARBAGE, 2 * MS, 2)
        job.backward(MS).step(MS)
    for start, reason in ((job.now, "size mismatch"), (None, "")):
        job.fact("compilation", function="f", file="m.py", line=3, duration_ns=5, start=start, recompile_reason=reason)
    case = case_of(job.process(tmp_path / "recording"))
    assert [(use.kind, use.count, use.duration) for use in case.segments] == [("checkpoint", 1, 90 * MS)]
    assert case.segments[0].share == pytest.approx(90 / (39 * 3 + 9 * 2 + 90), rel=0.01)
    assert case.garbage is not None
    assert case.garbage.collections == pytest.approx(9 / 39)  # the collector is watched in disturbed steps, too
    assert [use.after_warm_up for use in case.compilations] == [True, False]


def test_lines_that_break_a_compiled_graph_are_reported_without_the_compilers_logs(tmp_path: Path) -> None:
    job = JournalBuilder()
    reason = "Unsupported Tensor.item() call\n  Explanation: it is a value.\n  Hint: Set capture_scalar_outputs.\n"
    for line in (12, 12, 30):
        job.fact("graph_break", site={"file": "net.py", "line": line, "function": "forward", "text": ""}, reason=reason)
    job.fact("graph_break", site={"file": "net.py", "line": 31, "function": "forward", "text": ""}, reason="")
    for _ in range(20):
        job.forward(5 * MS).backward(8 * MS).step(2 * MS)
    case = case_of(job.process(tmp_path / "recording"))
    assert case.compiler is not None
    reported = [(each.source.line, each.count, each.reason, each.hint) for each in case.compiler.breaks]
    message = "Unsupported Tensor.item() call", "Set capture_scalar_outputs."
    assert reported == [(12, 2, *message), (30, 1, *message)]
    found = next(each for each in examine(case).findings if each.code == "ST308")
    assert found.summary.startswith("2 lines break the compiled graph: net.py:12, Unsupported Tensor.item() call")


def test_a_function_that_the_compiler_has_given_up_is_reported_without_its_logs(tmp_path: Path) -> None:
    job = JournalBuilder()
    compiled = {"function": "forward", "file": "net.py", "line": 7, "duration_ns": MS}
    for size in range(3):
        job.fact("compilation", **compiled, recompile_reason=f"0/{size}: size mismatch at index 0. expected {size}")
    job.fact("compilation", **compiled, failed="Dynamo recompile limit exceeded")
    for _ in range(20):
        job.forward(5 * MS).backward(8 * MS).step(2 * MS)
    case = case_of(job.process(tmp_path / "recording"))
    found = next(each for each in examine(case).findings if each.code == "ST309")
    assert found.summary == "forward (net.py:7) was compiled 4 times in 4 ms and runs uncompiled"
    assert "size mismatch at index 0. expected 2" in " ".join(found.evidence)


def test_a_collection_in_an_evaluation_is_no_steps(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(40):
        if number == 20:
            with job.within(Kind.CHECKPOINT):
                job.wait(MS).span(Kind.GARBAGE, 60 * MS, 2).wait(MS)
        job.forward(MS).backward(MS).step(MS)
    garbage = case_of(job.process(tmp_path / "recording")).garbage
    assert garbage is not None
    assert (garbage.duration.value, garbage.collections) == (0, 0)


def test_contention_is_that_of_the_steady_steps(tmp_path: Path) -> None:
    job = JournalBuilder().fact("settings", **SETTINGS)
    first = job.now
    for number in range(60):
        job.forward((10 + number // 20) * MS).backward(10 * MS).step(MS)
    looks = [(first - MS, 9.0), (first + 300 * MS, 0.5), (first + 600 * MS, 0.7), (first + 99_000 * MS, 9.0)]
    samples = [TelemetrySample(time, 1.2, other, 0, 30.0) for time, other in looks]
    contention = case_of(job.process(tmp_path / "recording"), telemetry=samples).contention
    assert contention is not None
    assert contention.other_cpu == pytest.approx(0.7)
    assert contention.usable_cpus == 2
    assert contention.drift == pytest.approx(2 / 21)
    assert case_of(job.process(tmp_path / "again")).contention is None


def test_no_steady_step_makes_no_case(tmp_path: Path) -> None:
    process = JournalBuilder().forward(MS).backward(MS).step(MS).process(tmp_path / "recording")
    with pytest.raises(ValueError, match="steady"):
        case_of(process)


LOOP: tuple[tuple[int, str, list[str], list[str]], ...] = (
    (10, "for step in range(100):", ["step"], ["range"]),
    (11, "    picked = rng.integers(0, n, 64)", ["picked"], ["rng", "n"]),
    (12, "    x, y = make_batch(picked)", ["x", "y"], ["make_batch", "picked"]),
    (13, "    x = x.to(device)", ["x"], ["x", "device", "to"]),
    (14, "    out = model(x)", ["out"], ["model", "x"]),
    (15, "    loss = loss_of(out, y)", ["loss"], ["loss_of", "out", "y"]),
    (16, "    loss.backward()", [], ["loss", "backward"]),
    (17, "    optimizer.step()", [], ["optimizer", "step"]),
    (18, "    log.append(loss.item())", [], ["log", "loss", "item"]),
)


def custom_loop(job: JournalBuilder, lined: bool) -> None:
    def line(number: int, duration: int) -> None:
        start = job.now
        job.wait(duration)
        if lined:
            job.record(Kind.LINE, start, job.now, 100 + number - 10)

    def around(number: int, kind: Kind, duration: int, flags: int = 0) -> None:
        start = job.now
        job.wait(10 * US).span(kind, duration, 1, flags).wait(10 * US)
        if lined:
            job.record(Kind.LINE, start, job.now, 100 + number - 10)

    line(10, 10 * US)
    line(11, 1 * MS)
    start = job.now
    line_12 = 6 * MS
    job.wait(line_12)
    if lined:  # make_batch's own line lies inside
        job.record(Kind.LINE, start + 1 * MS, start + 5 * MS, 201)
        job.record(Kind.LINE, start, job.now, 102)
    line(13, 500 * US)
    around(14, Kind.FORWARD, 4 * MS, Flag.GRADIENT | Flag.TRAINING)
    line(15, 2 * MS)
    around(16, Kind.BACKWARD, 8 * MS)
    around(17, Kind.OPTIMIZER_STEP, 2 * MS)
    line(18, 3 * MS)


def job_with_lines(device: str) -> JournalBuilder:
    job = JournalBuilder()
    job.process_facts["device"] = device
    code = {"base": 100, "file": "train.py", "function": "main", "first_line": 10, "loop": True}
    names = ("line", "text", "stores", "loads")
    job.fact("code", **code, lines=[dict(zip(names, line, strict=True)) for line in LOOP])
    made = {"line": 31, "text": "pixels = decode(picked)", "stores": ["pixels"], "loads": ["decode", "picked"]}
    start = job.now
    job.fact("code", base=200, file="train.py", function="make_batch", first_line=30, loop=False, lines=[made])
    for number in range(40):
        start = job.now if number == 4 else start
        custom_loop(job, lined=4 <= number < 9)
        if number == 8:
            job.record(Kind.LINES, start, job.now)
    return job


@pytest.mark.parametrize(("device", "moving"), [("cpu", "input"), ("cuda", "transfer")])
def test_roles_of_lines_by_clock_and_by_names(tmp_path: Path, device: str, moving: str) -> None:
    process = job_with_lines(device).process(tmp_path / "recording")
    lines: dict[int, LineUse] = {use.source.line: use for use in case_of(process).lines}
    roles = {number: use.role for number, use in lines.items()}
    assert roles == {
        10: "python",
        11: "input",
        12: "input",
        13: moving,
        14: "forward",
        15: "python",
        16: "backward",
        17: "optimizer",
        18: "python",
        31: "input",
    }
    assert lines[12].duration.value == 2 * MS  # without the line inside of it
    assert lines[31].duration.value == 4 * MS
    assert lines[16].python.value == pytest.approx(20 * US)
    assert lines[18].hits == 1


def test_operators_of_a_line_are_not_the_hosts(tmp_path: Path) -> None:
    """The profiled step spends all of the loss, which lies between forward and backward, in operators."""
    job = job_with_lines("cpu")
    start = job.now
    custom_loop(job, lined=False)
    job.record(Kind.PROFILED, start, job.now, 1)
    process = job.process(tmp_path / "recording")
    layout = lay_out_whole(process)
    forward, backward = layout.work.forward.end[-1], layout.work.backward.start[-1]
    first, last = layout.timeline.steps.start[-1], layout.timeline.steps.end[-1]
    busy = union([first, forward, last - 1], [first + 1, backward, last])
    lines = {use.source.line: use for use in line_uses(process, layout, usual_steps(layout), busy)}
    assert lines[15].duration.value == 2 * MS
    assert lines[15].python.value < 0.01 * MS
    assert lines[18].python.value == pytest.approx(3 * MS, rel=0.01)
    assert lines[12].python.value == 2 * MS


def test_own_batch_preparation_is_input_in_steps_without_lines(tmp_path: Path) -> None:
    process = job_with_lines("cuda").process(tmp_path / "recording")
    phases = {use.name: use.duration.value for use in case_of(process).phases}
    assert phases["input"] == pytest.approx(7 * MS, rel=0.01)
    assert phases["transfer"] == pytest.approx(0.5 * MS, rel=0.02)
    assert phases["rest"] == pytest.approx((0.01 + 2 + 3 + 0.06) * MS, rel=0.03)


HOT = DeviceSample(
    utilization=97.0, clock_mhz=1200, max_clock_mhz=1980, throttle_reasons=0x40, power_watts=210.0,
    power_limit_watts=300.0, link_width=4, link_max_width=16, link_generation=4, link_max_generation=4,
)  # fmt: skip
IDLE = replace(HOT, utilization=0.0, clock_mhz=345, throttle_reasons=1, link_generation=1)


def test_a_gpu_that_is_held_back_is_seen_while_it_works(tmp_path: Path) -> None:
    """Samples as the launcher writes them from NVML; an idle GPU slows its clock and its link down by itself."""
    job = JournalBuilder()
    for _ in range(40):
        job.next(10 * MS).forward(40 * MS).backward(40 * MS).step(10 * MS)
    process = job.process(tmp_path / "recording")
    start = int(lay_out_whole(process).timeline.steps.start[0])
    looks = [HOT, HOT, IDLE, replace(HOT, throttle_reasons=0x4, clock_mhz=1500)]
    telemetry = [
        TelemetrySample(start + (number + 1) * 800 * MS, 1.0, 0.0, 1, devices=(look,))
        for number, look in enumerate(looks)
    ]
    (use,) = case_of(process, telemetry=telemetry).gpus
    assert (use.samples, use.slowed, use.slowed_clock) == (2, 0.5, 1200.0)
    assert (use.capped, use.capped_clock, use.max_clock) == (0.5, 1500.0, 1980.0)
    assert (use.width, use.max_width, use.generation) == (4, 16, 4)


def test_an_instance_of_a_shared_gpu_that_tells_little_is_taken_as_it_is(tmp_path: Path) -> None:
    """Without a utilisation the reasons for its clock say whether it works; without clocks no rule says anything."""
    job = JournalBuilder()
    for _ in range(40):
        job.next(10 * MS).forward(40 * MS).backward(40 * MS).step(10 * MS)
    process = job.process(tmp_path / "recording")
    start = int(lay_out_whole(process).timeline.steps.start[0])

    def uses(*looks: DeviceSample) -> tuple[GpuUse, ...]:
        times = (start + (number + 1) * 800 * MS for number in range(4))
        telemetry = [TelemetrySample(at, 1.0, 0.0, 1, devices=looks) for at in times]
        return case_of(process, telemetry=telemetry).gpus

    working, idle = replace(HOT, utilization=None), replace(IDLE, utilization=None)
    assert [use.slowed for use in uses(working)] == [1.0]
    assert uses(idle) == ()
    assert uses(DeviceSample(memory_bytes=1, memory_total_bytes=2)) == ()
    (unclocked,) = uses(replace(HOT, max_clock_mhz=None))
    assert (unclocked.slowed, unclocked.width) == (0.0, 4)
