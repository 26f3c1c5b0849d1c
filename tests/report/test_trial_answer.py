"""What is told of a trial and of a lab: the answer first, each figure with its interval, nothing cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from printed import sound

from steptime.advice.fix import Goal, Promise
from steptime.advice.whole_run import OtherWork
from steptime.answer.tables import Table
from steptime.answer.text import as_text
from steptime.changes import Change
from steptime.quantities import Estimate
from steptime.recording.parity import StepWork
from steptime.report import judge_answer, lab_answer, trial_answer
from steptime.report.tables import trial_table
from steptime.report.trial_answer import FIRST
from steptime.report.trials import trial_report
from steptime.trials.plan import batch_variant, lab_variants
from steptime.trials.results import PatchResult, Plan, Results
from steptime.trials.trial import BASELINE, PATCH, Agreement, Judgement, Run, TrialVerdict, Variant


@sound
def render_trial(results: Results, advice: Sequence[str] = (), next_command: str = "") -> str:
    return as_text(trial_answer.answer_of(results, "runs/try", advice, next_command))


@sound
def render_lab(
    results: Results, size: int | None, next_command: str, capacity: int | None = None, samples: float | None = None
) -> str:
    return as_text(lab_answer.answer_of(results, size, next_command, capacity, samples))


VARIANT = Variant("RM101", (), "RM101", "num_workers=2, persistent_workers=True", Promise.SAME_BITS)
FASTER = Judgement(
    VARIANT, TrialVerdict.ADOPT, Agreement.SAME_BITS, "Losses are equal", Estimate(2.9, 2.7, 3.1, 4, "1"), 1.02, 35e6, 4
)


def run(variant: str, step: int) -> Run:
    return Run(variant, 0, 0, 0, 0, False, "", 4.0, step_ns=(step,) * 20, peak_bytes=375 << 20, compile_seconds=3.0)


def results(*judgements: Judgement, patch: PatchResult | None = None) -> Results:
    variants = tuple(each.variant for each in judgements)
    runs = (run(BASELINE, 100_000_000), *(run(variant.name, 35_000_000) for variant in variants))
    plan = Plan(("python", "train.py"), "/job", "runs/a", variants, 0.03)
    return Results(plan, runs, tuple((0, each) for each in judgements), patch)


def test_what_a_patch_overrules_and_what_it_cannot_write_are_reported_with_their_number() -> None:
    replaced = ("train.py: num_workers=args.workers is 2 now",)
    text = render_trial(results(FASTER, patch=PatchResult("diff", (), ("one", "two", "three"), FASTER, replaced)))
    assert "\n  train.py: num_workers=args.workers is 2 now\n" in text
    assert text.count("\nTo change by hand: ") == 3


@pytest.mark.parametrize("count", [1, 5, 9, 40])
def test_it_starts_with_the_answer_and_ends_with_the_next_command(count: int) -> None:
    many = [replace(FASTER, variant=replace(VARIANT, name=f"RM{number}")) for number in range(count)]
    patch = PatchResult("diff", (("OMP_NUM_THREADS", "1"),), ("model = torch.compile(model)",), FASTER)
    text = render_trial(results(*many, patch=patch), ["Give the dataset a __getitems__"] * 9, "steptime explain RM101")
    lines = text.splitlines()
    assert lines[0] == "100 → 34.5 ms/step measured (2.9×)"
    assert lines[lines.index("") + 1].startswith(VARIANT.label), "then the answer"
    assert text.count("Yours: ") == 9, "nothing that is said is cut"
    more = count - FIRST
    assert (f"and {more} more: steptime report runs/try -o trial.html" in text) == (more > 0)
    assert lines[-1] == "Next:  steptime explain RM101"


def test_a_speed_has_its_interval_and_the_patch_its_own() -> None:
    proved = replace(FASTER, speed=Estimate(2.8, 2.6, 3.0, 3, "1"))
    text = render_trial(results(FASTER, patch=PatchResult("diff", (), (), proved)))
    assert "2.90× (2.70–3.10)" in text
    assert "Patch: ran at 2.80× (2.60–3.00)" in text


def test_a_prediction_stands_alongside_what_was_measured_with_its_error() -> None:
    near = replace(FASTER, variant=replace(VARIANT, predicted=Estimate(2.61, 2.0, 3.0, 4, "1")))
    far = replace(FASTER, variant=replace(VARIANT, name="RM2", predicted=Estimate(1.45, 1.0, 3.0, 4, "1")))
    text = render_trial(results(near, far, FASTER))
    assert "predicted 2.61× (−10 %); " in text
    assert "predicted 1.45× (−50 %); " in text
    assert "\nPredicted vs. measured: off by 30 % in the median, −50 % at most (2 predictions)\n" in text
    assert "Predicted against measured" not in render_trial(results(near, FASTER)), "one says nothing of the others"
    table = trial_table(trial_report(results(near), "trials/a"))
    column = [each.title for each in table.columns].index("against measured")
    assert [row[column].text for row in table.rows] == ["−10 %"]


def test_a_trial_for_memory_tells_what_the_peak_came_to_and_what_it_costs() -> None:
    less = replace(FASTER, speed=Estimate(0.75, 0.7, 0.8, 4, "1"), memory=Estimate(1.6, 1.5, 1.7, 4, "1"))
    for_memory = results(less, patch=PatchResult("diff", (), (), less))
    for_memory = replace(for_memory, plan=replace(for_memory.plan, goal=Goal.MEMORY))
    text = render_trial(for_memory)
    assert "Unchanged: peak memory 375 MiB; step 100 ms" in text
    assert "−38 % (−41 to −33)" in text
    assert "0.75× as fast" in text
    assert "Patch: ran with peak −38 % (−41 to −33)" in text


def test_the_longest_compilation_is_paid_back_by_steps() -> None:
    made = results(FASTER)
    cold, warm = (replace(run(VARIANT.name, 35_000_000), compile_seconds=seconds) for seconds in (15.0, 4.0))
    text = render_trial(replace(made, runs=(*made.runs, cold, warm)))
    assert "pays from step 183 on" in text  # 12 s more than the baseline, 65.5 ms saved in each step
    unproven = replace(FASTER, verdict=TrialVerdict.UNDECIDED, speed=Estimate(1.1, 0.8, 1.5, 4, "1"))
    assert "pays from" not in render_trial(replace(results(unproven), runs=(*made.runs, cold)))
    assert "pays from" not in render_trial(made)


def test_what_came_to_nothing_says_why() -> None:
    idle = replace(FASTER, verdict=TrialVerdict.NOT_EXERCISED, sentence="no DataLoader was made", speed=None)
    text = render_trial(results(idle))
    assert "not exercised" in text
    assert "no DataLoader was made" in text


def of_lab(fixed: list[Judgement], sizes: list[Judgement]) -> Results:
    made = results(*fixed)
    return replace(made, judgements=(*made.judgements, *((1, each) for each in sizes)))


def size(number: int, speed: float | None, sentence: str = "") -> Judgement:
    """A batch size, and how many times as fast as the job's own its step is."""
    if speed is None:
        failed = replace(FASTER, speed=None, step_ns=None, verdict=TrialVerdict.FAILED, sentence=sentence)
        return replace(failed, variant=batch_variant(number))
    estimate = Estimate(speed, 0.97 * speed, 1.03 * speed, 2, "1")
    return replace(FASTER, variant=batch_variant(number), speed=estimate, verdict=TrialVerdict.UNDECIDED)


def test_a_lab_reads_its_upper_bound() -> None:
    judged = [
        replace(FASTER, variant=variant, verdict=TrialVerdict.UNDECIDED) for variant in lab_variants(compile_modes=True)
    ]
    sizes = [size(16 << number, 1.9 / (1 << number)) for number in range(4)] + [
        size(
            256, None, "RuntimeError: [enforce fail at alloc_cpu.cpp:134] . DefaultCPUAllocator: can't allocate memory"
        )
    ]
    lines = render_lab(of_lab(judged, sizes), 32, "steptime try runs/a").splitlines()
    assert lines[-1] == "Next:  steptime try runs/a"
    text = " ".join(lines)
    assert "perfect input would make steps 2.90×" in lines[0]
    assert "256  out of memory" in text
    assert "no tried precision or compilation is measurably faster" in text


def test_a_row_of_a_lab_agrees_with_its_speed_up_or_says_what_is_compared() -> None:
    """The job as it is takes 100 ms, the variant 35 ms."""
    message = "compared with the runs right before and after"
    made = results(replace(FASTER, variant=lab_variants()[0]))
    text = render_lab(made, None, "x")
    assert message not in text
    uneven = replace(run(lab_variants()[0].name, 0), step_ns=(20_000_000,) * 19 + (320_000_000,))
    text = render_lab(replace(made, runs=(made.runs[0], uneven)), None, "x")
    row = next(line for line in text.splitlines() if line.startswith(f"  {lab_variants()[0].label} "))
    assert row.split()[1:7] == ["35", "ms", "20", "ms", "0", "ns"], "the mean, of which the speed-up is; median, IQR"
    rows = render_lab(made, None, "x", samples=32.0).splitlines()
    rates = [row.split("ns")[-1].split()[0] for row in rows if row.startswith(("  as it is", "  bfloat16"))]
    assert rates == ["320", "914"], "samples per second in every row"
    slower = replace(FASTER, variant=lab_variants()[0], speed=Estimate(0.97, 0.9, 1.04, 3, "1"))
    assert f"{slower.variant.label}: it is {message}" in render_lab(results(slower), None, "x")


def test_throughput_is_read_to_its_plateau_and_to_the_end_of_memory() -> None:
    growing = [size(16, 1.9), size(64, 0.6)]
    text = " ".join(render_lab(of_lab([], growing), 32, "x").split())
    assert "throughput still grows up to 64" in text.lower()
    assert "16 304" in text  # a tenth of a second a step as it is
    assert "32 320 (as it is)" in text
    full = [*growing, size(128, None, "CUDA out of memory. Tried to allocate 2 GiB")]
    assert "grows to 64, and 128 runs out of memory" in " ".join(render_lab(of_lab([], full), 32, "x").split())
    unsure = replace(size(64, 0.5), speed=Estimate(0.5, 0.2, 0.9, 2, "1"))
    assert "within the intervals' precision" in render_lab(of_lab([], [unsure]), 32, "x")
    assert "no precision" not in render_lab(
        of_lab([replace(FASTER, variant=lab_variants()[0], verdict=TrialVerdict.UNDECIDED, speed=None)], []), 32, "x"
    )
    flat = [size(16, 1.9), size(64, 0.505), size(128, 0.25)]
    assert "beyond batches of 32 throughput hardly grows" in " ".join(
        render_lab(of_lab([], flat), 32, "x").lower().split()
    )


def test_the_largest_batch_says_what_it_leaves_of_the_memory() -> None:
    sizes = [replace(size(64, 0.6), peak_bytes=3 << 30), size(128, None, "CUDA out of memory")]
    text = " ".join(render_lab(of_lab([], sizes), 32, "x", 4 << 30).split())
    assert "3 GiB" in text
    assert "the largest timed batch, 64, leaves 25 % of 4 GiB free" in text
    assert "leaves" not in render_lab(of_lab([], sizes), 32, "x")


def test_compiling_that_is_not_known_to_pay_has_no_break_even() -> None:
    compiled = lab_variants()[1]
    unsure = replace(FASTER, variant=compiled, verdict=TrialVerdict.UNDECIDED, speed=Estimate(1.1, 0.8, 1.5, 3, "1"))
    assert "never known" in render_lab(results(unsure), None, "x")
    sure = replace(unsure, speed=Estimate(2.0, 1.8, 2.2, 3, "1"))
    assert "paid back after 60 steps" in render_lab(results(sure), None, "x")


def test_a_patch_that_failed_by_itself_is_no_patch() -> None:
    failed = replace(FASTER, verdict=TrialVerdict.FAILED, sentence="It ended with status 1")
    text = render_trial(results(FASTER, patch=PatchResult("", (), ("fused=True",), failed)))
    assert "Patch: none; it failed when run by itself: It ended with status 1\n" in text
    assert "To change by hand: fused=True" in text


def test_code_of_several_lines_keeps_them() -> None:
    code = "a.py:3:\nfor row in rows:\n    print('\x1b')" + 40 * "\n    pass"
    text = render_trial(results(FASTER, patch=PatchResult("", (), (code,), None)))
    assert "\nTo change by hand: a.py:3:\n  for row in rows:\n      print('\\x1b')\n" in text
    assert FASTER.variant.label in text, "however long it is"


def test_the_command_that_applies_a_patch_is_reported_whole() -> None:
    apply = f"git -C /{'long/' * 20}repository apply /tmp/patch.diff"
    assert f"Apply it: {apply}\n" in render_trial(results(FASTER, patch=PatchResult("diff", (), (), FASTER, (), apply)))


def test_a_patch_that_was_not_timed_is_not_recommended() -> None:
    text = render_trial(results(FASTER, patch=PatchResult("diff", (), (), None, (), "git -C /work apply /x.diff")))
    assert "Patch: not timed" in text
    assert "Apply it (untimed): git -C /work apply /x.diff\n" in text


def workers(number: int, speed: float) -> Judgement:
    change = Change("loader", arguments=(("num_workers", number), ("persistent_workers", True)))
    variant = replace(VARIANT, name=f"RM101.{number}", changes=(change,), label=f"num_workers={number}")
    return replace(FASTER, variant=variant, speed=Estimate(speed, 0.95 * speed, 1.05 * speed, 3, "1"))


def test_a_sweep_of_workers_is_a_curve_with_the_smallest_number_that_none_beats() -> None:
    lines = render_trial(results(workers(1, 1.5), workers(2, 2.45), workers(4, 2.5), workers(8, 1.9))).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Steps per second by workers"))
    assert lines[start] == "Steps per second by workers (unchanged: 10)"
    assert [line.split()[0] for line in lines[start + 2 : start + 6]] == ["1", "2", "4", "8"]
    assert "Optimum: 2 workers" in lines
    growing = render_trial(results(workers(1, 1.5), workers(2, 2.45)))
    assert "Optimum: 2 workers, the largest number tried: more workers may be faster still" in growing
    slower = render_trial(results(workers(1, 0.9), workers(2, 1.02)))
    assert "Optimum: the job's own number; none of these is measurably faster" in slower


def test_a_lab_without_a_round_says_that_nothing_was_timed() -> None:
    made = results(*(replace(FASTER, variant=each, speed=None) for each in lab_variants()))
    made = replace(made, runs=(), plan=replace(made.plan, step_seconds=0.0192))
    text = render_lab(made, None, "steptime lab --budget 2m --resume runs/a-lab")
    assert "Unchanged: 19.2 ms per step as recorded; no process of the trial was timed" in text
    assert "No result: the budget was too short for one round. Give a larger --budget." in text
    assert "pays" not in text


def lab_of(cast: float, both: float, breaks: int = 0, *, fast: bool = True) -> str:
    """What a lab reads, by the speed-ups of bfloat16 without and with compiling; the input costs nothing."""
    bf16, compiled, perfect = lab_variants()
    judged = [
        replace(FASTER, variant=variant, verdict=TrialVerdict.NO_EFFECT, speed=Estimate(value, value, value, 3, "1"))
        for variant, value in ((bf16, cast), (compiled, both), (perfect, 1.0))
    ]
    made = results(*judged)
    runs = tuple(replace(each, graph_breaks=breaks if each.variant == compiled.name else 0) for each in made.runs)
    answer = lab_answer.answer_of(replace(made, runs=runs), None, "x", fast_bfloat16=fast)
    return " ".join(answer.headline.split())


def test_little_by_precision_and_little_by_compiling_are_read_as_the_field_reads_them() -> None:
    text = lab_of(1.1, 1.15, breaks=3)
    assert "bfloat16 gains less than 20 %: precision is not the limit, look at the CPU" in text
    assert "compiling gains less than 10 % more: 3 lines of the model broke its graph" in text
    assert "no graph break was seen" in lab_of(1.5, 1.6)
    assert "precision is not" not in lab_of(1.5, 1.6)
    assert "precision is not" not in lab_of(0.6, 1.6, fast=False), "this processor has no faster bfloat16"
    assert "compiling brings" not in lab_of(1.5, 2.0)


def counted_runs(before: StepWork, after: StepWork, *growths: float) -> Results:
    """A trial whose rehearsals counted these, and whose timed runs grew by so many bytes per step."""
    made = results(FASTER)
    rehearsed = (
        replace(run(name, 1), rehearsal=True, step_ns=(), work=(StepWork(), work))
        for name, work in ((BASELINE, before), (VARIANT.name, after))
    )
    timed = (replace(each, growth=growth) for each, growth in zip(made.runs, growths or (None, None), strict=True))
    return replace(made, runs=(*rehearsed, *timed))


def test_kernels_per_step_and_growth_are_reported_before_and_after() -> None:
    eager, graphs = (StepWork(kernels=532, launches=many, operators=900) for many in (532, 3))
    fused = StepWork(kernels=48, launches=48, operators=300)
    for text in map(render_trial, (counted_runs(eager, fused), counted_runs(eager, graphs))):
        assert "532 → 48 launches per step" in text or "532 → 3 launches per step" in text
    assert "532 → 48 kernels per step" in render_trial(counted_runs(eager, fused))
    assert "kernels per step" not in render_trial(counted_runs(eager, graphs)), "graphs launch as many at once"
    on_a_cpu = counted_runs(StepWork(operators=532), StepWork(operators=48), 1_027_604.0, 0.0)
    text = " ".join(as_text(judge_answer.answer_of(on_a_cpu, "runs/judge")).split())
    assert "532 → 48 operators per step" in text
    assert "Memory growth 0.98 MiB/step → no certain one" in text
    assert "operators per step" not in render_trial(counted_runs(eager, eager))


def test_a_lab_has_kernels_in_each_row_and_throughput_as_a_picture() -> None:
    judged = [replace(FASTER, variant=VARIANT)]
    judged += [replace(FASTER, variant=batch_variant(size), speed=Estimate(1.0, 0.9, 1.1, 3, "1")) for size in (16, 64)]
    made = replace(counted_runs(StepWork(operators=532), StepWork(operators=48)),
                   judgements=tuple((0, each) for each in judged))  # fmt: skip
    answer = lab_answer.answer_of(made, 32, "x", samples=32.0)
    table = answer.parts[0]
    assert isinstance(table, Table)
    assert [column.title for column in table.columns][-1] == "operators"
    assert [row[-1].text for row in table.rows] == ["532", "48"]
    assert all(row[5].text and row[7].text for row in table.rows), "samples/s and peak memory of every row"
    assert [figure.title for figure in answer.figures] == ["Throughput over batch size"]


def test_memory_is_shown_by_rank_with_both_steps_even_without_an_interval_of_the_speed() -> None:
    variant = replace(FASTER.variant, name="RM705.2", proposal="RM705", label="fully_shard", changes=())
    measured = (("baseline", 40_000_000, (3 << 30, 3 << 30)), (variant.name, 55_000_000, (2 << 30, 1 << 30)))
    runs = tuple(
        replace(run(name, place), step_ns=(step,) * 5, peaks=peaks, peak_bytes=max(peaks))
        for place, (name, step, peaks) in enumerate(measured)
    )
    judgement = replace(
        FASTER, variant=variant, speed=None, memory=Estimate(1.5, 1.4, 1.6, 1, "1"), verdict=TrialVerdict.UNDECIDED,
        sentence="Less memory, and not adopted: too few baselines",
    )  # fmt: skip
    made = results(judgement)
    text = " ".join(render_trial(replace(made, runs=runs, plan=replace(made.plan, goal=Goal.MEMORY))).split())
    assert "fully_shard: peak memory −33 % (−38 to −29); its training is not judged yet." in text
    assert "peak of each rank 3 GiB and 3 GiB → 2 GiB and 1 GiB; step 40 ms → 55 ms; Less memory" in text
    rehearsed = tuple(replace(each, rehearsal=True) for each in runs)
    made = results(replace(judgement, memory=None))
    text = render_trial(replace(made, runs=rehearsed, plan=replace(made.plan, goal=Goal.MEMORY)))
    assert "in a rehearsal: peak of each rank 3 GiB and 3 GiB → 2 GiB and 1 GiB;" in " ".join(text.split())
    assert "too short for one round" in text


def between(verdict: TrialVerdict, of_run: float, **more: object) -> Results:
    """Results of a job whose steps are 14 % of its run."""
    about = Estimate(of_run, of_run - 0.01, of_run + 0.01, 3, "1")
    judgement = replace(FASTER, verdict=verdict, speed=Estimate(1.2, 1.1, 1.31, 3, "1"), of_run=about, **more)  # type: ignore[arg-type]
    patch = replace(judgement, variant=replace(VARIANT, name=PATCH, label=PATCH))
    made = results(judgement, patch=PatchResult("diff", (), (), patch))
    return replace(made, plan=replace(made.plan, other=OtherWork(0.86, "rollout", 320.0)))


def test_every_document_says_what_a_gain_of_the_step_is_to_the_run() -> None:
    made = between(TrialVerdict.STEP_ONLY, 1.02)
    known = "1.20× (1.10–1.31) of a step, some 1.02× of the run"
    texts = [render_trial(made), render_lab(made, 32, ""), as_text(judge_answer.answer_of(made, "runs/judge"))]
    for text in texts:
        assert known in text
        assert "as recorded: rollouts come every 320 steps. A gain of the run assumes rollouts as often" in text
    assert "gain of the step only" in texts[0].splitlines()[0]
    assert "Steps are 14 % of the run." in texts[0].splitlines()[0]
    assert "measured" not in texts[0].splitlines()[0], "no big number for what the run does not gain"
    document = judge_answer.as_document(made)
    assert document["candidates"][0]["verdict"] == "gain of the step only"
    assert (
        document["candidates"][0]["speed_up_of_run"]["value"] == document["patch"]["speed_up_of_run"]["value"] == 1.02
    )
    assert document["between_steps"] == {"share": 0.86, "kind": "rollout", "every": 320.0}


def test_a_gain_that_the_run_keeps_is_told_with_both() -> None:
    made = between(TrialVerdict.ADOPT, 1.1, other=Estimate(1.3, 1.2, 1.4, 3, "1"))
    text = render_trial(made)
    assert (
        "The patch pays: 1.20× (1.10–1.31) of a step, some 1.10× of the run, measured by itself. Steps are 14 %" in text
    )
    assert "Rollouts: 1.30× (1.20–1.40)" in text
    assert text.splitlines()[2].strip() == f"By: {PATCH}. Steps are 14 % of the run: some 1.10× of the run"
    assert "pays (1.20× of a step, some 1.10× of the run)" in render_lab(made, 32, "")


def test_a_job_whose_steps_are_the_run_is_told_as_ever() -> None:
    text = render_trial(results(FASTER)) + as_text(judge_answer.answer_of(results(FASTER), "runs/judge"))
    assert "of the run" not in text
    assert "of a step" not in text
