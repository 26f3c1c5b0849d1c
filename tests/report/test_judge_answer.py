"""What `steptime judge` prints: verdicts in its own words, the power of the comparison, the time to decide."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from printed import sound

from steptime.answer.markdown import as_markdown
from steptime.answer.text import as_text
from steptime.quantities import Estimate
from steptime.recording.parity import StepWork
from steptime.report.judge_answer import answer_of, as_document
from steptime.report.verdict_words import power_of, seconds_to_decide
from steptime.trials.plan import batch_variant
from steptime.trials.results import Plan, Results
from steptime.trials.trial import BASELINE, CONTROL, Agreement, Judgement, MachineLoad, Run, TrialVerdict, Variant

render_judged = sound(lambda results: as_text(answer_of(results, "runs/judge")))
render_markdown = sound(lambda results: as_markdown(answer_of(results, "runs/judge")))


def run(variant: str, round_: int, loss: float, seed: int = 0, step: int = 10_000_000) -> Run:
    losses = tuple(loss for _ in range(40))
    return Run(variant, 0, round_, round_, seed, False, "", 5.0, step_ns=(step,) * 40, losses=losses)


RUNS = (*(run(BASELINE, seed, 1.0 + seed / 100, seed) for seed in range(4)), run(CONTROL, 0, 1.0), run(CONTROL, 1, 1.0))
FASTER = Judgement(
    Variant("diff-1", label="fast | er.patch"),
    TrialVerdict.ADOPT,
    Agreement.SAME_BITS,
    "Losses are equal, bit for bit",
    speed=Estimate(1.25, 1.2, 1.3, 3, "1"),
    rounds=3,
)
RESULTS = Results(Plan(("python", "train.py"), "/job", "runs/job", (FASTER.variant,), 0.03), RUNS, ((0, FASTER),), None)


def judged(verdict: TrialVerdict, **changed: object) -> Results:
    return replace(RESULTS, judgements=((0, replace(FASTER, verdict=verdict, **changed)),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (TrialVerdict.ADOPT, "faster"),
        (TrialVerdict.SLOWER, "slower"),
        (TrialVerdict.NO_EFFECT, "no difference"),
        (TrialVerdict.UNDECIDED, "undecided"),
        (TrialVerdict.BROKE_PROMISE, "different training"),
        (TrialVerdict.FAILED, "broken"),
    ],
)
def test_each_verdict_has_one_word_in_every_output(verdict: TrialVerdict, word: str) -> None:
    results = judged(verdict)
    assert any(line.strip().startswith(f"{word} ") for line in render_judged(results).splitlines())
    assert f"| {word} |" in render_markdown(results)
    assert as_document(results)["candidates"][0]["verdict"] == word


def test_what_may_be_slower_is_not_reported_to_make_no_difference() -> None:
    wide = judged(TrialVerdict.NO_EFFECT, speed=Estimate(0.76, 0.56, 1.03, 3, "1"))
    assert as_document(wide)["candidates"][0]["verdict"] == "not faster"
    narrow = judged(TrialVerdict.NO_EFFECT, speed=Estimate(1.0, 0.98, 1.02, 3, "1"))
    assert as_document(narrow)["candidates"][0]["verdict"] == "no difference"


def test_a_label_does_not_break_the_table() -> None:
    assert "fast \\| er.patch" in render_markdown(RESULTS)


def paired(*runs: Run, agreement: Agreement = Agreement.SAME_CURVE) -> Results:
    """A candidate with the runs given, next to those of the job as it is."""
    judgement = replace(FASTER, agreement=agreement)
    return replace(RESULTS, runs=(*RUNS, *runs), judgements=((0, judgement),))


def power(results: Results) -> float:
    return float(power_of(results).split("a loss that is ")[1].split(" %")[0])


def test_the_power_says_which_loss_would_have_been_seen() -> None:
    message = power_of(paired(run("diff-1", 0, 1.0)))
    assert "after 40 steps" in message
    assert "band of 4 seeds" in message
    assert power_of(paired()) == "", "no losses of the candidate were seen"
    assert power_of(paired(run("diff-1", 0, 2.0), agreement=Agreement.APART)) == ""


def test_a_wider_band_sees_less() -> None:
    near = paired(run("diff-1", 0, 1.0))
    wide = [replace(each, losses=tuple(1 + each.seed / 10 for _ in range(40))) for each in near.runs]
    assert power(near) < power(replace(near, runs=tuple(wide)))


def test_pairs_of_one_seed_see_more_than_the_band_of_seeds() -> None:
    alike = [run("diff-1", seed, 1.0 + seed / 100 + (-1) ** seed / 1e5, seed) for seed in range(4)]
    other = [replace(each, seed=each.seed + 100) for each in alike]
    assert power(paired(*alike)) < 0.5 * power(paired(*other))


def test_of_losses_that_are_equal_bit_by_bit_any_difference_would_have_been_seen() -> None:
    assert "%" not in power_of(RESULTS)
    assert "any difference" in power_of(RESULTS)


def test_what_is_undecided_says_how_long_it_would_take() -> None:
    near, far = (
        judged(TrialVerdict.UNDECIDED, speed=Estimate(value, value / 1.1, value * 1.1, 3, "1"))
        for value in (1.09, 1.12)
    )
    times = [seconds_to_decide(each.judgements[0][1], each) for each in (near, far)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0] > times[1] > 0
    assert seconds_to_decide(FASTER, RESULTS) is None


def test_what_was_only_rehearsed_says_how_long_its_first_rounds_take() -> None:
    rehearsed = tuple(replace(run(each, 0, 1.0), rehearsal=True, seconds=20.0) for each in (BASELINE, "diff-1"))
    none = replace(judged(TrialVerdict.UNDECIDED, speed=None, rounds=0), runs=rehearsed)
    assert as_document(none)["candidates"][0]["seconds_to_decide"] == 120.0  # two rounds of three processes
    assert "Its first rounds take about 2 min" in render_judged(none)


def test_a_labs_batch_sizes_are_reported_to_programs_with_their_items_a_second() -> None:
    larger = replace(
        FASTER, variant=batch_variant(64), verdict=TrialVerdict.SLOWER, speed=Estimate(0.8, 0.7, 0.9, 2, "1")
    )
    full = replace(larger, variant=batch_variant(128), verdict=TrialVerdict.FAILED, speed=None)
    found = replace(RESULTS, judgements=((2, full), (1, larger), (0, FASTER)))
    own, timed, failed = as_document(found)["candidates"]
    assert "batch_size" not in own
    assert (timed["batch_size"], timed["verdict"]) == (64, "timed")
    step = as_document(found)["step_ns"]
    assert timed["items_per_second"]["value"] == pytest.approx(0.8 * 64 / step * 1e9)
    assert (failed["batch_size"], failed["verdict"], failed["items_per_second"]) == (128, "broken", None)


def test_what_is_undecided_says_what_is_known_of_its_training() -> None:
    open_ = judged(TrialVerdict.UNDECIDED, sentence="Unclear", training="Losses are equal, bit for bit")
    assert "Losses are equal, bit for bit" in render_judged(open_)
    assert as_document(open_)["candidates"][0]["sentences"][:2] == ["Unclear", "Losses are equal, bit for bit"]


def worked(variant: str, *, decay: float = 0.1, rehearsal: bool = False, **more: Any) -> Run:
    work = StepWork(
        inputs=("16x3",),
        batches=(((1.0, 2.0),),),
        options=((json.dumps({"weight_decay": decay}), 3),),
        evaluated=(("3", 64),),
    )
    made = replace(run(variant, 0, 1.0), work=(work,) * 4, backwards=(1,) * 4, rehearsal=rehearsal, **more)
    return replace(made, norms=((("weight", 1.0), ("bias", 2.0)),)) if rehearsal else made


PHASES = (2e6, 0.0, 3e6, 4e6, 1e6, 0.0, 0.0)


ROLLOUT = (("rollout", 2_000_000_000),)


def test_a_document_says_what_was_compared_where_the_time_goes_and_on_what_it_was_measured() -> None:
    runs = (
        *(worked(name, rehearsal=True) for name in (BASELINE, "diff-1")),
        *(worked(name, phases=PHASES, load=MachineLoad(0.5), other_ns=ROLLOUT * 2) for name in (BASELINE, CONTROL)),
        worked("diff-1", step_ns=(8_000_000,) * 40, phases=(0.0, *PHASES[1:]), other_ns=ROLLOUT),
    )
    plan = replace(RESULTS.plan, measured_on=("A CPU, 2 torch threads on 2 CPUs", "Commit 0123456789ab"))
    displayed = render_markdown(replace(RESULTS, plan=plan, runs=runs))
    for line in (
        "| batches | values equal in 8 of 8 checked steps; shapes equal in 8 of 8 |",
        "| options of the optimizer | equal in 8 steps |",
        "| gradients of the first step | norms of 2 parameters are equal |",
        "| parameters in float64 | not rehearsed |",
        "| evaluations | 256 samples, 256 in the unchanged job, over the same steps |",
        "| whole passes over the data | none seen |",
        "| losses | 1 after 40 steps, 1 in the unchanged job with the same seeds |",
        "| step | 10 ms | 8 ms | −2 ms |",
        "| samples | 1,600 samples/s | 2,000 samples/s | +25 % |",
        "| input | 2 ms | 0 ns | −2 ms |",
        "| optimizer | 1 ms | 1 ms | – |",
        "| each rollout between steps | 2 s | 2 s | – |",
        "- Commit 0123456789ab",
        "- Other processes used 0.3 CPUs on average during the timed runs, at most 0.5",
    ):
        assert line in displayed, (line, displayed)
    assert "What was compared" not in render_judged(replace(RESULTS, runs=runs)), "a terminal has the verdicts"


def test_a_document_shows_what_differs_in_a_candidate_that_was_refused() -> None:
    runs = (worked(BASELINE, rehearsal=True), worked("diff-1", decay=0.0, rehearsal=True))
    displayed = render_markdown(replace(RESULTS, runs=runs))
    assert "weight_decay 0.0 in place of 0.1" in displayed
    assert "Where the time goes" not in displayed


def test_a_time_is_not_promised_that_the_most_rounds_would_not_do() -> None:
    wide = judged(TrialVerdict.UNDECIDED, speed=Estimate(1.03, 0.89, 1.19, 3, "1"))
    assert seconds_to_decide(wide.judgements[0][1], wide) is None
    assert "would hardly decide it" in render_judged(wide)
