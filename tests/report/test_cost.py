"""What steptime itself cost in a run."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from advice.healthy import HEALTHY
from journals import MS, US, JournalBuilder

from steptime.advice.assemble import assemble
from steptime.advice.run_uses import LoaderUse
from steptime.analysis.layout import lay_out_whole
from steptime.cli.after_run import made_since
from steptime.diagnosis import diagnose_paths
from steptime.journal import RECORD, Kind
from steptime.machine.machine import Machine
from steptime.quantities import Estimate
from steptime.recording.recording import Manifest
from steptime.recording.rule_facts import PaddingFacts
from steptime.report.compose import cost_of, throughput_of
from steptime.report.report import Cost, Throughput
from steptime.report.sentences import cost_text, throughput_text

LOADER = LoaderUse("Images", 32, 0, Estimate(1e6, 1e6, 1e6, 9))
MANIFEST = Manifest(1, "0", ("job",), "/", "box", 0)
INSTRUMENTATION = 40 * US
"""What each watched step of the built job takes longer."""


def cost(folder: Path, *, turns: int, slow_end: int = 0, levels: random.Random | None = None) -> Cost:
    """Steps of 10 ms, every eleventh one a little longer; `turns` blocks of ten with the watch off. One profile.
    levels: the machine is slower in some blocks than in others."""
    job = JournalBuilder()
    for block in range(2 * turns + 3 + (10 if slow_end else 0)):
        start = job.now
        level = round(levels.gauss(500, 100)) * US if levels is not None else 0
        watched = block < 3 or block % 2 == 0 or block > 2 * turns + 2
        for step in range(10):
            extra = level + (100 * US if (10 * block + step) % 11 == 0 else 0)
            extra += slow_end if block > 2 * turns + 2 else 0
            if watched:
                job.next(2 * MS).forward(3 * MS + extra).backward(4 * MS).step(1 * MS + INSTRUMENTATION)
            else:
                job.wait(10 * MS + extra).record(Kind.BOUNDARY, job.now, job.now)
        if not watched:
            job.record(Kind.UNTIMED, start, job.now)
    job.span(Kind.PAUSE, 7 * MS)
    process = job.process(folder)
    return cost_of(process, lay_out_whole(process).timeline.steps)


def test_the_watch_is_measured_against_steps_without_it(tmp_path: Path) -> None:
    found = cost(tmp_path / "r", turns=4)
    assert found.instrumentation is not None
    assert found.instrumentation.value == pytest.approx(INSTRUMENTATION, rel=0.1)
    assert found.instrumentation.low <= INSTRUMENTATION <= found.instrumentation.high


def test_a_machine_whose_pace_changes_from_turn_to_turn_does_not_feign_precision(tmp_path: Path) -> None:
    levels = random.Random(1)
    right = 0
    for number in range(60):
        found = cost(tmp_path / str(number), turns=6, levels=levels).instrumentation
        assert found is not None
        assert found.samples == 6
        right += found.low <= INSTRUMENTATION <= found.high
    assert right >= 54


def test_steps_far_from_the_turns_do_not_count(tmp_path: Path) -> None:
    found = cost(tmp_path / "r", turns=2, slow_end=4 * MS)
    assert found.instrumentation is not None
    assert found.instrumentation.value == pytest.approx(INSTRUMENTATION, rel=0.1)


def test_without_such_steps_the_cost_is_computed_and_not_called_measured(tmp_path: Path) -> None:
    found = cost(tmp_path / "r", turns=0)
    assert found.instrumentation is None
    assert found.bytes_per_step == pytest.approx(4 * RECORD.size, rel=0.1)
    assert found.computed is not None
    assert 10 * US < found.computed < 30 * US


def test_the_time_that_the_job_was_held_is_summed(tmp_path: Path) -> None:
    assert cost(tmp_path / "r", turns=0).pause_ns == 7 * MS


def test_what_looking_closely_took_is_reported_once_and_as_a_share_of_the_run() -> None:
    found = Cost(None, 27e3, 6, 300 * MS, 500 * MS, 186.0, 10, 1000 * MS, 7000 * MS)
    once = "1.50 s once, for 10 line-timed and 6 profiled steps (21 % of this 7 s run)"
    assert cost_text(found, 79.7e6) == f"about 27 µs/step always (< 0.1 %); {once}"


def test_the_share_is_that_of_the_whole_job_and_what_lies_around_it_is_reported_apart() -> None:
    manifest = replace(MANIFEST, before_ns=200 * MS, job_ns=10_000 * MS, after_ns=300 * MS)
    found = Cost(
        None, 27e3, 6, 300 * MS, 500 * MS, 186.0, 10, 1000 * MS, manifest.job_ns, 0, 0.0, None, 200 * MS, 300 * MS
    )
    once = "1.50 s once, for 10 line-timed and 6 profiled steps (15 % of this 10 s run)"
    around = "500 ms before and after the job, for its start and this report"
    assert cost_text(found, 79.7e6) == f"about 27 µs/step always (< 0.1 %); {once}; {around}"


@pytest.mark.parametrize("job_ns", [0, 1_000 * MS])
def test_the_manifest_says_how_long_the_job_was_and_what_lay_around_it(tmp_path: Path, job_ns: int) -> None:
    job = JournalBuilder()
    for _ in range(20):
        job.next(2 * MS).forward(3 * MS).backward(4 * MS).step(1 * MS)
    process = job.process(tmp_path)
    steps = lay_out_whole(process).timeline.steps
    manifest = replace(MANIFEST, before_ns=200 * MS, job_ns=job_ns, after_ns=300 * MS)
    found = cost_of(process, steps, manifest=manifest)
    assert (found.before_ns, found.after_ns) == (200 * MS, 300 * MS)
    assert found.run_ns == (job_ns or cost_of(process, steps).run_ns)
    assert 0 < cost_of(process, steps).run_ns <= 200 * MS


def test_what_making_the_report_took_is_added_without_the_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = Cost(None, 27e3, 6, 0, 0, 186.0, peaks_ns=3_000 * MS, before_ns=200 * MS, after_ns=300 * MS)
    job = JournalBuilder()
    for _ in range(20):
        job.next(2 * MS).forward(3 * MS).backward(4 * MS).step(1 * MS)
    job.process(tmp_path)
    report = diagnose_paths((str(tmp_path),))
    processes = (replace(report.processes[0], cost=cost), replace(report.processes[0], cost=None))
    monkeypatch.setattr("time.perf_counter_ns", lambda: 10_000 * MS)
    found = made_since(replace(report, processes=processes), 5_000 * MS).processes
    assert found[0].cost == replace(cost, after_ns=2_300 * MS)
    assert found[1].cost is None


@pytest.mark.parametrize(("kind", "first"), [(Kind.DISCOVERY, 10), (Kind.LINES, 10), (Kind.DISCOVERY, 0)])
def test_steps_in_which_functions_are_looked_for_cost_what_they_took_longer(
    tmp_path: Path, kind: Kind, first: int
) -> None:
    job = JournalBuilder()
    for number in range(30):
        start, slow = job.now, 5 * MS if first <= number < first + 2 else 0
        job.next(2 * MS).forward(3 * MS + slow).backward(4 * MS).step(1 * MS)
        if slow:
            job.record(kind, start, job.now)
    process = job.process(tmp_path)
    found = cost_of(process, lay_out_whole(process).timeline.steps)
    assert found.slowed_ns == pytest.approx(10 * MS, rel=0.2)


def test_a_slow_step_of_the_warm_up_is_not_all_our_doing(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(30):
        start = job.now
        job.next(2 * MS).forward(3 * MS if number else 300 * MS).backward(4 * MS).step(1 * MS)
        if not number:
            job.record(Kind.DISCOVERY, start, job.now)
    process = job.process(tmp_path)
    found = cost_of(process, lay_out_whole(process).timeline.steps)
    assert found.slowed_ns == pytest.approx(10 * MS, rel=0.1)


def test_records_between_the_steps_count_for_what_lies_from_step_to_step(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(20):
        job.span(Kind.CHECKPOINT, 40 * MS).next(2 * MS).forward(3 * MS).backward(4 * MS).step(1 * MS)
    process = job.process(tmp_path)
    assert cost_of(process, lay_out_whole(process).timeline.steps).span_ns == pytest.approx(50 * MS, rel=0.1)
    found = Cost(None, 626e3, 0, 0, 0, 186.0, span_ns=8.45e6)
    assert cost_text(found, 1.38e6).startswith("about 626 µs always, between step starts (7.4 % of 8.45 ms); ")


def in_turns(*, starts: bool = False) -> JournalBuilder:
    """Blocks of ten steps of 10 ms, and of 9 ms without a watch. starts: epochs start in these, and their start is told
    when somebody watches again."""
    job = JournalBuilder()
    for block in range(11):
        start = job.now
        for _ in range(10):
            if block % 2:
                job.wait(9 * MS).record(Kind.BOUNDARY, job.now, job.now)
            else:
                job.next(2 * MS).forward(3 * MS).backward(4 * MS).step(1 * MS)
        if block % 2 and starts:
            job.record(Kind.LOADER_START, start + MS, job.now + MS // 100, identity=1)
        if block % 2:
            job.record(Kind.UNTIMED, start, job.now)
    return job


def test_alongside_other_load_no_difference_passes_for_our_cost(tmp_path: Path) -> None:
    process = in_turns().process(tmp_path)
    steps = lay_out_whole(process).timeline.steps
    assert cost_of(process, steps).instrumentation is not None
    assert HEALTHY.contention is not None
    busy = replace(HEALTHY.contention, other_cpu=1.2, job_cpu=0.8, usable_cpus=2, pressure=75.0)
    assert cost_of(process, steps, None, busy).instrumentation is None


def test_epochs_that_start_without_a_watch_do_not_pass_for_its_cost(tmp_path: Path) -> None:
    process = in_turns(starts=True).process(tmp_path)
    steps = lay_out_whole(process).timeline.steps
    assert (steps.duration[~steps.timed] > 8 * MS).all()
    watch = cost_of(process, steps).instrumentation
    assert watch is not None
    assert watch.value == pytest.approx(MS, rel=0.2)


def test_steps_that_were_looked_at_closely_cost_what_they_took_longer(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(20):
        start = job.now
        slow = 5 * MS if number in (10, 11) else 0
        job.next(2 * MS).forward(3 * MS + slow).backward(4 * MS).step(1 * MS)
        if slow:
            job.record(Kind.PROFILED, start, job.now)
    process = job.process(tmp_path)
    found = cost_of(process, lay_out_whole(process).timeline.steps)
    assert found.profiled_steps == 2
    assert found.slowed_ns == pytest.approx(10 * MS, rel=0.1)
    assert found.run_ns == pytest.approx(210 * MS, rel=0.1)


def test_the_throughput_is_reported_of_steady_steps_and_of_the_run(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(30):
        job.next(2 * MS).forward(3 * MS).backward(4 * MS).step((1 if number < 20 else 11) * MS)
    steps = lay_out_whole(job.process(tmp_path)).timeline.steps
    case = replace(HEALTHY, step=replace(HEALTHY.step, duration=Estimate(10e6, 10e6, 10e6, 9)), loader=LOADER)
    found = throughput_of(case, steps)
    assert found is not None
    assert found.rate == pytest.approx(3200)
    assert found.run_rate == pytest.approx(32 * 30 / 0.4, rel=0.1)
    assert found.token_rate is None
    text = replace(case, padding=PaddingFacts(0.1, 2, 32 * 128.0))
    assert "3,200 samples/s, 409,600 tokens/s in a steady step" in throughput_text(throughput_of(text, steps))


def test_without_the_size_of_a_batch_no_throughput_is_reported(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(9):
        job.next(2 * MS).forward(3 * MS).backward(4 * MS).step(1 * MS)
    steps = lay_out_whole(job.process(tmp_path)).timeline.steps
    assert throughput_of(replace(HEALTHY, loader=None), steps) is None
    assert throughput_of(replace(HEALTHY, loader=replace(LOADER, batch_size=None)), steps) is None
    assert throughput_text(None) == ""


@pytest.mark.parametrize("changed", [False, True])
def test_without_a_loader_samples_are_rows_of_what_the_model_is_called_with(tmp_path: Path, changed: bool) -> None:
    job = JournalBuilder()
    job.fact("inputs", identity=1, module="GPT", rows=8, tokens=512, steps=2)
    if changed:
        job.fact("inputs", identity=1, module="GPT", rows=8, tokens=512, steps=2, changed=True)
    for _ in range(20):
        job.forward(MS, gradient=False)
        for _ in range(2):
            job.forward(2 * MS).backward(2 * MS)
        job.step(1 * MS)
    process = job.process(tmp_path)
    layout = lay_out_whole(process)
    case = assemble(process, layout)
    found = throughput_of(case, layout.timeline.steps)
    if changed:
        assert found is None
        return
    assert found is not None
    assert (found.samples, found.tokens, found.model) == (16.0, 1024.0, "GPT")
    assert found.rate == pytest.approx(1600)
    assert found.run_rate == pytest.approx(1600, rel=0.1)
    assert throughput_text(found).startswith("1,600 samples/s, 102,400 tokens/s in a steady step")
    assert throughput_text(found).endswith("(samples: rows of GPT's inputs)")
    loaded = throughput_of(replace(case, loader=LOADER), layout.timeline.steps)
    assert loaded is not None
    assert (loaded.samples, loaded.tokens, loaded.model) == (32.0, None, ""), "a loader knows better"


def test_of_several_ranks_each_and_all_have_a_throughput() -> None:
    found = Throughput(32.0, 1600.0, 800.0)
    text = throughput_text(found, "cuda", 8)
    assert text.startswith("1,600 samples/s/GPU (12,800 samples/s by 8 ranks) in a steady step, 800 samples/s/GPU")
    assert throughput_text(found, "cpu", 2).startswith("1,600 samples/s per rank (3,200 samples/s by 2 ranks) in ")


def test_a_model_that_some_steps_do_without_tells_no_throughput(tmp_path: Path) -> None:
    job = JournalBuilder()
    job.fact("inputs", identity=1, module="Fold", rows=8, steps=2)
    for root in (1, 2):
        for _ in range(10):
            job.forward(2 * MS, root=root).backward(2 * MS).step(1 * MS)
    process = job.process(tmp_path)
    assert assemble(process, lay_out_whole(process)).inputs is None


def test_measuring_the_peaks_of_the_machine_is_a_cost_too(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(9):
        job.next(2 * MS).forward(3 * MS).backward(4 * MS).step(1 * MS)
    process = job.process(tmp_path)
    found = cost_of(process, lay_out_whole(process).timeline.steps, Machine("cpu", "box", spent_ns=3_100_000_000))
    assert cost_text(found, 10 * MS).endswith("; 3.10 s after the job, for this machine's peaks")
