"""Runs that are judged by the time to a loss: when it is reached, and what makes that time mean nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from preloading import python
from trials.shared_machine import run

from steptime.changes import VariantOptions
from steptime.errors import NothingMeasuredError
from steptime.launcher.outcome import ProbeOptions
from steptime.launcher.variant import VariantPlace, run_variant
from steptime.probe.changes.loss_course import LossCourse
from steptime.recording.load import load
from steptime.recording.parity import StepWork
from steptime.trials.execute import ScheduledRun, read_run
from steptime.trials.judge import judge
from steptime.trials.trial import BASELINE, CONTROL, Agreement, Run, TrialVerdict, Variant
from steptime.trials.until_loss import LossTarget, means_of

TARGET = LossTarget(0.5)
CANDIDATE = Variant("args-1", label="--lr 0.1", speed_alone=True)
WEIGHTS, OTHER = ((("weight", 8, (value,) * 16),) for value in (1.0, 2.0))


def falling(steps: int, first: float = 2.0) -> tuple[float, ...]:
    """Losses that fall for some steps, and stay long enough for their mean to reach the target."""
    return tuple(first - (first - 0.4) * step / steps for step in range(steps)) + (0.4,) * 12


def work(steps: int, batch: float = 0.0) -> tuple[StepWork, ...]:
    """Steps on 32 samples each, no two the same, from one set of weights. batch: what the first one is about."""
    batches = [((float(number) + batch,) * 16,) for number in range(steps)]
    return tuple(
        StepWork(("32x8",), (each,), (), 0.0, (), WEIGHTS if not number else (), (), (), 0)
        for number, each in enumerate(batches)
    )


def rehearsal(variant: str, position: int, first: float = 2.0, **more: object) -> Run:
    losses = (first, *(first - 0.01 * step for step in range(1, 7)))
    known = run(variant, position, losses=losses, rehearsal=True, work=work(7), backwards=(1,) * 7)
    return replace(known, **more)  # type: ignore[arg-type]


def timed(variant: str, position: int, seconds: float | None, steps: int = 60, **more: object) -> Run:
    losses = more.pop("losses", falling(steps))
    assert isinstance(losses, tuple)
    known = run(variant, position, (1_000_000,) * 10, losses=losses, metric=seconds, seed=position % 3)
    known = replace(known, backwards=(1,) * len(losses), work=work(len(losses)))
    return replace(known, **more)  # type: ignore[arg-type]


def runs(*own: Run, first: float = 2.0, seconds: float = 0.5) -> list[Run]:
    """Of the job as it is, which needs a second, and of a candidate: a rehearsal and three rounds, where nothing else
    is given."""
    plain = [rehearsal(BASELINE, 0), rehearsal(BASELINE, 1)]
    plain += [timed(name, 10 + 2 * n, 1.0 + 0.01 * n) for n, name in enumerate((BASELINE, CONTROL, BASELINE) * 3)]
    plain += [timed(BASELINE, 30, 1.0)]
    candidate = [rehearsal("args-1", 2, first)] + [timed("args-1", 11 + 6 * n, seconds, 30) for n in range(3)]
    return [*plain, *(own or candidate)]


def test_a_loss_is_reached_when_the_mean_of_the_last_tenth_of_steps_is_there() -> None:
    course = LossCourse()
    means = [course.add(loss) for loss in [1.0] * 9 + [0.0] * 191]
    assert means[:9] == [inf] * 9
    assert means[9] == pytest.approx(0.9)
    assert means[14] == pytest.approx(0.4)
    assert means[199] == 0.0
    noisy = [1.0, 0.0] * 100
    assert list(means_of(noisy, [1] * 200))[199] == pytest.approx(0.5)
    assert LossTarget(0.4).step(noisy, [1] * 200) is None


def test_steps_without_a_backward_have_no_loss_and_one_that_is_not_finite_reaches_nothing() -> None:
    losses: list[float | None] = [None, *[0.1] * 12]
    assert TARGET.step(losses, [0] + [1] * 12) == 11
    assert TARGET.step([None, *[0.1] * 12], [1] * 13) == 11
    assert TARGET.step([0.1] * 9 + [None], [1] * 10) is None
    assert LossCourse().add(nan) == inf


def test_what_reaches_the_loss_sooner_is_faster_whatever_else_it_trains() -> None:
    judgement = judge(CANDIDATE, runs(), metric=TARGET)
    assert judgement.verdict is TrialVerdict.ADOPT
    assert judgement.speed is not None
    assert judgement.speed.value == pytest.approx(2.0, rel=0.1)
    assert judgement.sentence.startswith("It reaches the loss after 35 steps, the unchanged job after 62")


def test_a_run_that_never_reaches_it_is_reported_so() -> None:
    own = [rehearsal("args-1", 2), timed("args-1", 11, None, losses=(2.0,) * 50, ended_early=True)]
    judgement = judge(CANDIDATE, runs(*own), metric=TARGET)
    assert judgement.verdict is TrialVerdict.NOT_REACHED
    ended = "When it ended by itself after 50 steps and 4 s, its mean loss was 2"
    assert judgement.sentence == f"{ended}, and the unchanged job reaches 0.5 in 1.04 s"
    wild = replace(own[1], losses=(None,) * 50, ended_early=False)
    reported = judge(CANDIDATE, runs(own[0], wild), metric=TARGET).sentence
    assert reported.startswith("When its time limit stopped it after 50 steps and 4 s, its mean loss was not finite")


@pytest.mark.parametrize(
    ("own", "agreement", "words"),
    [
        (
            [rehearsal("args-1", 2, 1.8)],
            Agreement.OTHER_WORK,
            "On the first batch its loss is 1.8, and the job's 2",
        ),
        ([rehearsal("args-1", 2, 1.0)], Agreement.LESS_WORK, "Its first loss is 1; the unchanged job starts at 2"),
        (
            [timed("args-1", 11, 0.2, work=work(1) * 72)],
            Agreement.LESS_WORK,
            "It repeats a batch 72 times: the checked batches have 32 distinct samples, those of the unchanged job 900",
        ),
        ([timed("args-1", 11, 0.2, replaced=("time.time",))], Agreement.LESS_WORK, "It replaces time.time"),
        (
            [timed("args-1", 11, 0.2, work=tuple(replace(step, inputs=()) for step in work(72)))],
            Agreement.LESS_WORK,
            "no forward of the model",
        ),
        ([timed("args-1", 11, 0.2, samples=100)], Agreement.OTHER_WORK, "a dataset of 100 samples, the unchanged job"),
        (
            [timed("args-1", 11, 0.2, passes=(("Images", 900, 300),))],
            Agreement.LESS_WORK,
            "An epoch of Images has 300",
        ),
        (
            [timed("args-1", 11, 0.2, work=tuple(replace(step, evaluated=(("8", 5),)) for step in work(72)))],
            Agreement.LESS_WORK,
            "It evaluates 5 samples (8) at a time, the unchanged job 64",
        ),
    ],
)
def test_what_makes_the_time_to_a_loss_mean_nothing(own: list[Run], agreement: Agreement, words: str) -> None:
    known = [
        replace(
            each,
            samples=900,
            passes=(("Images", 900, 896),),
            work=(replace(each.work[0], evaluated=(("8", 64),)), *each.work[1:]),
        )
        for each in runs()
        if each.variant != "args-1"
    ]
    judgement = judge(CANDIDATE, [*known, *own], metric=TARGET)
    assert judgement.agreement is agreement
    assert words in judgement.sentence


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ([rehearsal("args-1", 2, 1.9, work=work(7, batch=0.5))], "its first batch differs"),
        (
            [
                rehearsal(
                    "args-1", 2, 2.2, work=(replace(work(1)[0], weights=(("weight", 8, (2.0,) * 16),)), *work(7)[1:])
                )
            ],
            "it starts from other weights (weight",
        ),
    ],
)
def test_where_the_loss_cannot_be_compared_the_verdict_says_so(own: list[Run], words: str) -> None:
    sooner = [timed("args-1", 11 + 6 * n, 0.5, 30) for n in range(3)]
    judgement = judge(CANDIDATE, runs(*own, *sooner), metric=TARGET)
    assert judgement.verdict is TrialVerdict.ADOPT
    assert words in judgement.sentence


def test_larger_batches_that_come_again_sooner_are_no_cheat() -> None:
    every = tuple(replace(step, inputs=("900x8",)) for step in work(1)) * 42
    sooner = [timed("args-1", 11 + 6 * n, 0.5, 30, work=every, samples=900) for n in range(3)]
    known = [replace(each, samples=900) for each in runs(rehearsal("args-1", 2), *sooner)]
    assert judge(CANDIDATE, known, metric=TARGET).verdict is TrialVerdict.ADOPT


def test_a_job_that_cannot_be_judged_by_a_loss_is_refused() -> None:
    TARGET.check(timed(BASELINE, 10, 1.0))
    with pytest.raises(
        NothingMeasuredError, match=r"did not reach a mean loss of 0\.5\. When its time limit stopped it after 72 steps"
    ):
        TARGET.check(timed(BASELINE, 10, None))
    with pytest.raises(NothingMeasuredError, match="is below 3 from its first 10 steps on"):
        LossTarget(3.0).check(timed(BASELINE, 10, 1.0))


JOB = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range({steps}):
    inputs = torch.randn(64, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("steps", "loss"), [(10**6, 0.5), (30, 0.5)])
def test_a_process_ends_soon_after_its_loss_is_there(tmp_path: Path, steps: int, loss: float) -> None:
    (tmp_path / "train.py").write_text(JOB.format(steps=steps))
    options = VariantOptions(1 << 40, limit_seconds=60.0, until_loss=loss)
    asked = ProbeOptions(profile=False, variant=options)
    start = time.monotonic()
    outcome = run_variant((python(), "train.py"), tmp_path / "recording", asked, VariantPlace(tmp_path))
    made = read_run(ScheduledRun(Variant(BASELINE), 0, 0, 0, options), outcome, time.monotonic() - start)
    reached = LossTarget(loss).step(made.losses, made.backwards)
    assert made.failure == ""
    if steps == 30:
        assert (reached, made.metric, made.ended_early) == (None, None, True)
        return
    assert reached is not None
    assert 30 < reached <= len(made.losses) <= reached + 17
    assert not made.ended_early
    parity = load(tmp_path / "recording").processes[0].parity
    assert parity is not None
    assert made.metric is not None
    assert 0 < made.metric <= (int(parity.end[reached - 1]) - parity.began_ns) / 1e9 <= made.seconds
