"""Parts of the page: single steps with their categories, trials, ranks, memory, and the way from A to B."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from report.timelines import MS, tried, with_timeline, with_trials

from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.memory_samples import OverTime
from steptime.analysis.stragglers.comparison import RankComparison, RankRow, Straggler, StragglerSeries
from steptime.analysis.timeline import Mode, Segment, SegmentKind, Steps, Timeline
from steptime.quantities import Estimate
from steptime.report.lab_answer import size_points
from steptime.report.page import page
from steptime.report.page.charts import series
from steptime.report.page.forest import forest
from steptime.report.page.over_time import memory_chart
from steptime.report.page.ranks import heat_map
from steptime.report.page.waterfall import moves_of
from steptime.report.report import Report
from steptime.report.steps import KINDS, MOST_ROWS, StepMark, series_of_process, series_of_trace
from steptime.report.trials import trial_report
from steptime.trials.results import Plan, Results
from steptime.trials.trial import MAX_ROUNDS, PATCH, Agreement, Judgement, Run, TrialVerdict, Variant

BLOCK = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z")


def steps(durations: list[int], **masks: list[int]) -> Steps:
    """Steps in a row; masks: numbers of the steps that are so. All others are steady."""
    count = len(durations)
    length = np.array(durations, np.int64)
    end = np.cumsum(length)
    names = ("warm_up", "excluded", "profiled", "off", "lined")
    flags = {name: np.isin(np.arange(count), masks.get(name, [])) for name in names}
    phases = np.zeros((count, 6), np.int64)
    phases[:, 5] = length
    return Steps(end - length, end, length, phases, np.ones(count, np.int64), flags["warm_up"], flags["excluded"],
                 ~flags["off"], flags["profiled"], flags["lined"])  # fmt: skip


def breakdown_of(durations: list[int]) -> Breakdown:
    """A quarter is input, the rest computing."""
    wall = np.array(durations, np.int64)
    entries = np.zeros((len(wall), len(Category)), np.int64)
    entries[:, Category.INPUT] = wall // 4
    entries[:, Category.COMPUTE] = wall - wall // 4
    return Breakdown("cpu", wall, entries)


def test_each_kind_of_step_is_reported_apart() -> None:
    durations = [300] + [100] * 30
    durations[20] = 400
    known = steps(durations, warm_up=[0], excluded=[3, 5, 6, 7], profiled=[3], off=[8], lined=[7])
    segments = (Segment(SegmentKind.EVALUATION, int(known.start[5]), int(known.start[5]) + 50),)
    timeline = Timeline(Mode.OPTIMIZER, known, segments, (), "the first")
    found = series_of_process(timeline, breakdown_of([durations[at] for at in np.flatnonzero(known.steady)]))
    names = [found.names[kind] for kind in found.kinds]
    assert (names[0], names[3], names[5], names[6], names[7], names[8]) == (
        "warm-up", "profiled", "with evaluation", "excluded", "line-timed", "timers off",
    )  # fmt: skip
    assert names[20] == "outlier"
    assert set(names) <= set(KINDS)
    assert [(mark.step, mark.kind, mark.duration) for mark in found.marks] == [(5, "evaluation", 50)]
    assert found.spent[20] == (300, 100)
    assert found.spent[0] == found.spent[5] == (), "what is not known is not told"


def test_an_even_series_has_no_outliers() -> None:
    found = series_of_trace(breakdown_of([1000, 1001, 1000, 1003, 1000, 1000, 1040]), 0)
    assert set(found.names) == {"steady"}


def test_categories_of_a_long_job_are_shared_by_neighbours() -> None:
    found = series_of_trace(breakdown_of([100, 300] * (3 * MOST_ROWS)), 0)
    assert found.stride == 6
    assert len(found.spent) == MOST_ROWS
    assert found.spent[0] == (150, 50)


def test_the_categories_of_a_step_fill_its_bar(report: Report) -> None:
    drawn = series(with_timeline(report).processes[0])
    assert drawn is not None
    blocks = {layer.name: [tuple(map(float, found)) for found in BLOCK.findall(layer.points)] for layer in drawn.layers}
    bar = drawn.bars[7]
    (compute,) = (block for block in blocks["compute"] if block[0] == pytest.approx(bar.x * 10, abs=0.1))
    (wait,) = (block for block in blocks["input"] if block[0] == pytest.approx(bar.x * 10, abs=0.1))
    assert compute[3] + wait[3] == pytest.approx(bar.height * 10, abs=0.3)
    assert wait[1] + wait[3] == pytest.approx(compute[1], abs=0.2), "one is on the other"
    assert compute[3] / wait[3] == pytest.approx(45 / 135, rel=0.01)
    assert [(sign.kind, sign.letter) for sign in drawn.signs] == [("slow", "△"), ("evaluation", "E")]
    assert {name: count for _, name, count in drawn.kinds} == {"warm-up": 1, "steady": 18, "with evaluation": 1}


def test_an_outlier_is_what_the_mean_leaves_out(report: Report) -> None:
    process = with_timeline(report).processes[0]
    drawn = series(replace(process, steady=tuple(step != 7 and known for step, known in enumerate(process.steady))))
    assert drawn is not None
    assert [(sign.kind, sign.letter) for sign in drawn.signs] == [("outlier", "▲"), ("evaluation", "E")]
    assert {name: count for _, name, count in drawn.kinds}["steady"] == 17, "as many as the step is the mean of"


def test_no_letter_lies_on_another(report: Report) -> None:
    process = with_timeline(report).processes[0]
    assert process.series is not None
    marks = tuple(StepMark(step, "pause", MS) for step in (2, 3, 40, 41, 42, 90))
    marks += (StepMark(90, "loader start", MS),)
    many = replace(process.series, kinds=(1,) * 100, spent=(), marks=marks)
    drawn = series(replace(process, step_ns=(96 * MS,) * 100, steady=(True,) * 100, series=many))
    assert drawn is not None
    assert [sign.letter for sign in drawn.signs] == ["P", "", "P", "", "", "L", ""]


def test_a_forest_keeps_its_distances(report: Report) -> None:
    trials = with_trials(report).trials
    assert trials is not None
    twice = tried((2.0, 1.8, 2.2), "adopt")
    half = tried((0.5, 0.45, 0.55), "slower", name="RM2")
    drawn = forest(replace(trials, variants=(twice, half)))
    assert drawn is not None
    up, down = (row.point for row in drawn.rows)
    assert up is not None
    assert down is not None
    assert up - drawn.one == pytest.approx(drawn.one - down), "twice as slow is as far as twice as fast"
    band = drawn.rows[0].noise_high - drawn.rows[0].noise_low
    assert band == pytest.approx((up - down) * math.log(1.05) / math.log(2.0)), "as wide as the control's noise"
    assert [row.outcome for row in drawn.rows] == ["adopted", "worse"]
    assert forest(None) is None


def test_the_page_of_a_trial_starts_with_what_it_came_to_and_what_to_do(report: Report) -> None:
    displayed = with_trials(report)
    drawn = forest(displayed.trials, None, 96.2 * MS)
    assert drawn is not None
    reported = (
        "num_workers=2: pays, 2.00× (1.80–2.20)",
        "bfloat16: broke its promise, 1.30× (1.20–1.40)",
        "compile: failed",
    )
    assert drawn.headline == f"{'; '.join(reported)}."
    turns = "Unchanged step: 100 ms, timed in turns with the variants (96.2 ms in the recording)"
    assert drawn.summary.startswith(turns)
    assert displayed.trials is not None
    assert displayed.trials.next_command == "steptime try --resume runs/train-try", "the patch was not timed by itself"
    alone = tried((2.0, 1.8, 2.2), "adopt", name=PATCH)
    proved = replace(displayed.trials, variants=(*displayed.trials.variants, alone))
    assert proved.next_command == "git apply patch.diff"
    assert replace(proved, variants=(replace(alone, rounds=1),)).next_command == "steptime try --resume runs/train-try"
    text = page.render(displayed)
    assert text.index("Tried fixes") < text.index("The recorded job") < text.index('id="findings"')


def test_a_judged_candidate_has_the_word_of_the_terminal(report: Report) -> None:
    trials = with_trials(report).trials
    assert trials is not None
    message = {
        "label": "faster.patch",
        "proposal": "",
        "sentence": "Step 1 trains on other samples than the job as it is",
    }
    changed = tried(None, "broke its promise", name="diff-1", kept=False, predicted=None, **message)
    waiting = tried(None, "undecided", name="env", label="OMP_NUM_THREADS=2", proposal="", kept=None, predicted=None)
    judged = replace(trials, variants=(changed, waiting), step_ns=None, peak_bytes=None, apply="")
    drawn = forest(judged)
    assert drawn is not None
    assert (drawn.title, drawn.item, drawn.drawn) == ("Judged changes", "candidate", False)
    assert drawn.headline == (
        "faster.patch: different training; 1 more not timed. Step 1 trains on other samples than the job as it is."
    )
    assert [(row.verdict, row.kept) for row in drawn.rows] == [
        ("different training", "different"),
        ("undecided", "not known"),
    ]
    assert drawn.summary.startswith("The unchanged job was not timed (")
    assert judged.next_command == "steptime judge --resume runs/train-try"
    ended = replace(judged, variants=(changed, replace(waiting, rounds=MAX_ROUNDS)))
    assert ended.next_command == "", "no further round is run"


def test_a_lab_draws_items_a_second_over_batch_sizes(report: Report) -> None:
    trials = with_trials(report).trials
    assert trials is not None
    sizes = tuple(tried((speed, 0.9 * speed, 1.1 * speed), "undecided", name=f"batch-{number}")
                  for number, speed in ((64, 0.5), (16, 2.0)))  # fmt: skip
    known = replace(trials, variants=(*trials.variants, *sizes))
    drawn = forest(known, 32)
    assert drawn is not None
    assert drawn.sizes is not None
    assert drawn.headline.startswith("Highest at batch size ")
    assert "batch-" not in drawn.headline
    assert [tick.words for tick in drawn.sizes.across] == ["16", "32", "64"]
    heights = {point.partition(",")[2] for point in drawn.sizes.curves[0].points.split()}
    assert len(heights) == 1, "twice the size at half the speed is as many items a second"
    assert not any("batch" in row.label for row in drawn.rows), "steps of other batches are not next to the job's"
    assert "Items/s by batch size" in page.render(replace(with_trials(report), trials=known))
    without = forest(trials, 32)
    assert without is not None
    assert without.sizes is None


def test_the_page_of_a_lab_has_the_step_that_its_text_has() -> None:
    size = Variant("batch-64", label="batches of 64")
    first = Run("baseline", 1, 0, 0, 0, False, "", 5.0, (100,), peak_bytes=10)
    later = (replace(first, stage=2, step_ns=(300,), peak_bytes=12), replace(first, stage=3, step_ns=(200,)))
    speed = Estimate(1.0, 0.9, 1.1, 4, "1")
    judged = Judgement(size, TrialVerdict.UNDECIDED, Agreement.NOT_SEEN, "", speed, 0.1, 100.0, 4, 20)
    plan = Plan(("python", "t.py"), "/x", "/x/runs/t", (size,), 0.03)
    results = Results(plan, (first, *later), ((2, judged),), None)
    found, (own, _) = trial_report(results, "f"), size_points(results, 32)
    assert (found.step_ns, found.peak_bytes) == (200.0, 12) == (32 / own.rate.value * 1e9 if own.rate else 0, own.peak)


def test_a_trial_becomes_its_report() -> None:
    variant = Variant("RM101", proposal="RM101", label="num_workers=2")
    speed = Estimate(2.0, 1.5, 2.5, 4, "1")
    runs = (
        Run("baseline", 0, 0, 0, 0, False, "", 5.0, (100, 300), (1.0, 0.5), peak_bytes=10),
        Run("baseline", 0, 0, 1, 1, False, "", 5.0, (200, 200), (1.1, 0.6), peak_bytes=12),
        Run("control", 0, 0, 2, 0, False, "", 5.0, (200,), (1.0, 0.5)),
        Run("RM101", 0, 0, 3, 0, False, "", 5.0, (100,), (None, 0.5), peak_bytes=20),
        Run("RM101", 0, 0, 4, 0, False, "killed", 5.0),
    )
    judged = Judgement(variant, TrialVerdict.BROKE_PROMISE, Agreement.APART, "apart", speed, 0.1, 100.0, 4, 20)
    plan = Plan(("python", "t.py"), "/x", "/x/runs/t", (variant,), 0.03)
    found = trial_report(Results(plan, runs, ((0, judged),), None), "f")
    assert (found.step_ns, found.peak_bytes, found.processes) == (200.0, 12, 5)
    assert [(curve.name, curve.seed, curve.losses) for curve in found.curves] == [
        ("baseline", 0, (1.0, 0.5)), ("baseline", 1, (1.1, 0.6)), ("RM101", 0, (None, 0.5)),
    ]  # fmt: skip
    (reported,) = found.variants
    assert (reported.kept, reported.verdict, reported.speed) == (False, "broke its promise", speed)


def ranks(count: int) -> RankComparison:
    rows = tuple(RankRow(rank, f"rank {rank}", "b" if rank == 2 else "a", 20, 100.0 * MS, (60.0 * MS, 0.0, 40.0 * MS),
                         1.0 * MS if rank == 2 else 30.0 * MS, 0.9 if rank == 2 else 0.02)
                 for rank in range(count))  # fmt: skip
    gain = Estimate(25.0 * MS, 20.0 * MS, 30.0 * MS, 5)
    late = Straggler((2,), "b", 30.0 * MS, 0.9, "input", 28.0 * MS, (("input", 28.0 * MS),), gain, since=40)
    behind = tuple(tuple(10.0 * MS if rank == 2 and at >= 15 else 0.0 for at in range(30)) for rank in range(count))
    series = StragglerSeries(1, tuple(range(30)), tuple(range(count)), behind)
    return RankComparison(("compute", "copy", "communication"), rows, late=late, series=series)


def test_the_late_rank_is_marked_among_all(report: Report) -> None:
    drawn = heat_map(replace(report, ranks=ranks(4)))
    assert drawn is not None
    assert [row.late for row in drawn.rows] == [False, False, True, False]
    assert drawn.categories == ("compute", "communication"), "what nobody spent is no column"
    assert drawn.sentence.startswith("Rank 2 is the straggler since step 41: the other ranks wait 30 ms/step, 90 %")
    assert drawn.straggler is not None
    fields = BLOCK.findall(drawn.straggler.shades[-1].points)
    assert len(fields) == 15
    assert {float(field[0]) >= 499 for field in fields} == {True}, "the second half of the steps"
    assert drawn.straggler.longest == "10 ms"


def test_of_a_thousand_ranks_the_slowest_and_the_late_are_displayed(report: Report) -> None:
    known = ranks(1000)
    slow = tuple(replace(row, step=row.step + (row.rank % 300) * MS) for row in known.rows)
    drawn = heat_map(replace(report, ranks=replace(known, rows=slow)))
    assert drawn is not None
    assert (len(drawn.rows), drawn.hidden) == (128, 872)
    assert any(row.late for row in drawn.rows)
    assert len(page.render(replace(report, ranks=replace(known, rows=slow))).encode()) < 2_500_000


def test_owners_are_stacked_to_the_peak() -> None:
    whole = 1 << 30
    owners = ("parameters", "activations")
    found = OverTime("GPU 0", "ns", (0, 10, 20), owners, ((whole, whole, whole), (0, whole, 0)), 1)
    drawn = memory_chart(found)
    assert drawn is not None
    assert (drawn.peak, drawn.peak_words) == (50.0, "2 GiB at 10 ns")
    lower, upper = (area.points.split() for area in drawn.areas)
    edge = [tuple(map(float, point.split(","))) for point in lower[:3]]
    assert [tuple(map(float, point.split(","))) for point in reversed(upper[3:])] == edge, "no gap between them"
    assert drawn.height == pytest.approx(100 / 1.06)
    assert memory_chart(replace(found, times=(0,), bytes=((1,), (1,)), peak=0)) is None


def test_from_before_to_after_every_category_moves_the_step() -> None:
    sure = ("input", Estimate(-40.0 * MS, -42.0 * MS, -38.0 * MS, 9))
    noise = ("overhead", Estimate(1.0 * MS, -2.0 * MS, 4.0 * MS, 9))
    drawn = moves_of((sure, noise), 100.0 * MS, 70.0 * MS)
    assert [(row.name, row.grown, row.certain) for row in drawn.rows] == [
        ("input", False, True), ("overhead", True, False), ("other", True, False),
    ]  # fmt: skip
    assert drawn.rows[2].words == "+9 ms", "what the rows leave open"
    scale = drawn.before / 100
    assert drawn.rows[0].start == pytest.approx(60 * scale)
    assert drawn.after == pytest.approx(70 * scale)
