"""Every kind of training loop that capture must understand, as the journal that it leaves."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from journals import MS, JournalBuilder

from steptime.analysis.layout import lay_out
from steptime.analysis.timeline import Mode, Phase, SegmentKind, Timeline
from steptime.journal import Flag, Kind


def laid_out(job: JournalBuilder, folder: Path) -> Timeline:
    timeline = lay_out(job.process(folder / "recording"))
    steps = timeline.steps
    assert np.array_equal(steps.phases.sum(axis=1), steps.duration)
    assert np.array_equal(steps.start[1:], steps.end[:-1])
    return timeline


def phases(timeline: Timeline, step: int) -> dict[Phase, int]:
    return {phase: int(timeline.steps.phases[step, phase]) for phase in Phase}


def kinds(timeline: Timeline) -> list[SegmentKind]:
    return [segment.kind for segment in timeline.segments]


def usual_step(job: JournalBuilder, iterator: int = 1) -> None:
    job.next(3 * MS, iterator).wait(1 * MS).forward(5 * MS).wait(1 * MS).backward(8 * MS).step(2 * MS).wait(1 * MS)


def evaluation(job: JournalBuilder, iterator: int, batches: int = 3) -> None:
    job.start(10 * MS, iterator)
    for _ in range(batches):
        job.next(2 * MS, iterator).wait(MS).evaluate(4 * MS).wait(MS)
    job.next(MS, iterator, exhausted=True)


def test_loader_with_evaluation_each_epoch(tmp_path: Path) -> None:
    job = JournalBuilder()
    for epoch in range(3):
        job.start(20 * MS, 10 + epoch)
        for _ in range(10):
            usual_step(job, 10 + epoch)
        job.next(MS, 10 + epoch, exhausted=True)
        evaluation(job, 20 + epoch)
    timeline = laid_out(job, tmp_path)
    assert timeline.mode is Mode.OPTIMIZER
    assert len(timeline.steps.end) == 30
    assert timeline.training_loaders == (10, 11, 12)
    evaluations = [segment for segment in timeline.segments if segment.kind is SegmentKind.EVALUATION]
    assert [segment.end - segment.start for segment in evaluations] == [(10 + 3 * 8 + 1) * MS] * 3
    assert kinds(timeline).count(SegmentKind.LOADER_START) == 3
    # The 11th and the 21st hold an evaluation; of it and of the loader's start nothing is left in their duration.
    assert np.flatnonzero(timeline.steps.excluded).tolist() == [10, 20]
    assert timeline.steps.duration[10] == 22 * MS
    assert list(phases(timeline, 5).values()) == [3 * MS, 0, 5 * MS, 8 * MS, 2 * MS, 0, 3 * MS]
    assert timeline.steps.steady.sum() == 30 - 1 - 2


@pytest.mark.parametrize("switched", [True, False])
def test_an_evaluation_behind_each_update_is_a_part_of_the_step(tmp_path: Path, switched: bool) -> None:
    job = JournalBuilder()
    for _ in range(12):
        usual_step(job)
        job.wait(MS).evaluate(20 * MS, training=not switched).wait(MS)
    timeline = laid_out(job, tmp_path)
    assert kinds(timeline) == []
    assert list(phases(timeline, 5).values()) == [3 * MS, 0, 5 * MS, 8 * MS, 2 * MS, 20 * MS, 5 * MS]
    assert timeline.steps.steady.sum() == 12 - 1


def test_an_evaluation_with_a_loader_of_its_own_in_each_step_is_a_part_of_it(tmp_path: Path) -> None:
    job = JournalBuilder()
    for epoch in range(12):
        usual_step(job)
        evaluation(job, 20 + epoch)
    timeline = laid_out(job, tmp_path)
    assert kinds(timeline) == []
    assert phases(timeline, 5)[Phase.EVALUATION] == (10 + 3 * 8 + 1) * MS
    assert timeline.steps.steady.sum() == 12 - 1


def test_a_teacher_and_a_generator_without_gradients_are_no_evaluation(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(12):
        job.next(MS).evaluate(4 * MS, root=3).evaluate(2 * MS, root=2, training=True)
        job.forward(5 * MS, root=1).backward(8 * MS).step(2 * MS, 1)
        job.forward(3 * MS, root=2).backward(3 * MS).step(2 * MS, 2)
    timeline = laid_out(job, tmp_path)
    assert phases(timeline, 5)[Phase.EVALUATION] == 0
    assert phases(timeline, 5)[Phase.FORWARD] == (4 + 2 + 5 + 3) * MS


def test_evaluation_that_forgot_no_grad(tmp_path: Path) -> None:
    job = JournalBuilder()
    for epoch in range(2):
        for _ in range(6):
            usual_step(job, 1 + epoch)
        for _ in range(4):
            job.next(MS, 11 + epoch).forward(4 * MS, training=epoch == 0)
    timeline = laid_out(job, tmp_path)
    assert timeline.training_loaders == (1, 2)
    assert kinds(timeline) == [SegmentKind.EVALUATION] * 2
    assert timeline.segments[0].end - timeline.segments[0].start == 20 * MS


@pytest.mark.parametrize("critic_steps", [1, 5])
def test_adversarial_training_with_two_optimizers(tmp_path: Path, critic_steps: int) -> None:
    job = JournalBuilder()
    for number in range(30):
        job.next(MS).forward(2 * MS, root=1)
        job.forward(MS, root=2, gradient=False).forward(MS, root=1).backward(3 * MS).step(MS, optimizer=1)
        if (number + 1) % critic_steps == 0:
            job.forward(2 * MS, root=2).forward(MS, root=1).backward(3 * MS).step(MS, optimizer=2)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 30
    assert timeline.segments == ()  # samples made without gradients are part of the step
    counts = np.bincount(timeline.steps.micro_batches)
    assert counts.tolist() == [0, 30], "each model has its batch of the step once"
    assert phases(timeline, 0)[Phase.FORWARD] == (4 if critic_steps > 1 else 7) * MS


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("111222333", 9),  # layers, one trained to its end before the next
        ("111222111222", 12),
        ("1212123434", 5),  # two optimizers hand over to two others
        ("12121", 2),  # the job was ended between two: the torn step is none
        ("1112111211", 10 - 2),  # a second optimizer every third step
        ("11221122", 4),  # two each: who belongs to whom cannot be told
        ("1123112311", 6),
        ("11112", 5),  # the second phase is one long step, as of L-BFGS
        ("1212123", 4),
    ],
)
def test_optimizers_that_take_turns(tmp_path: Path, order: str, expected: int) -> None:
    job = JournalBuilder()
    for number in map(int, order):
        job.forward(MS, root=number).backward(MS).step(MS, optimizer=number)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == expected
    assert (timeline.steps.duration > 0).all()


def test_micro_batches_are_counted_of_one_model_where_several_are_updated(tmp_path: Path) -> None:
    taking_turns, together = JournalBuilder(), JournalBuilder()
    for _ in range(10):
        for number in (1, 2):
            for _ in range(4):
                taking_turns.forward(MS, root=number).backward(MS)
            taking_turns.step(MS, optimizer=number)
        for _ in range(4):
            together.forward(MS).backward(MS)
        together.step(MS, optimizer=1).step(MS, optimizer=2)
    for name, job in (("turns", taking_turns), ("together", together)):
        (tmp_path / name).mkdir()
        steps = laid_out(job, tmp_path / name).steps
        assert set(steps.micro_batches[1:-1].tolist()) == {4}, name


def test_gradient_penalty_is_backward_but_no_micro_batch(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(10):
        job.next(MS).forward(2 * MS).backward(3 * MS, Flag.PARTIAL).backward(4 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert timeline.steps.micro_batches.tolist() == [1] * 10
    assert phases(timeline, 3)[Phase.BACKWARD] == 7 * MS


def test_accumulation_with_a_scaler_and_skipped_updates(tmp_path: Path) -> None:
    job = JournalBuilder()
    for update in range(10):
        for _ in range(4):
            job.next(MS).forward(2 * MS).backward(3 * MS)
        with job.within(Kind.SCALER_STEP, 1):
            job.wait(MS)
            if update % 3:
                job.step(2 * MS, optimizer=1)
    timeline = laid_out(job, tmp_path)
    assert timeline.steps.micro_batches.tolist() == [4] * 10
    assert phases(timeline, 3)[Phase.OPTIMIZER] == 1 * MS
    assert phases(timeline, 4)[Phase.OPTIMIZER] == 3 * MS


def test_batches_fetched_ahead_for_accumulation(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(8):
        for _ in range(4):
            job.next(MS)
        for _ in range(4):
            job.forward(2 * MS).backward(3 * MS)
        job.step(MS)
    timeline = laid_out(job, tmp_path)
    assert timeline.training_loaders == (1,)
    assert timeline.segments == ()
    assert phases(timeline, 5)[Phase.INPUT] == 4 * MS


def test_own_loop_without_loader_and_rare_evaluation(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(40):
        if number % 20 == 0:
            for _ in range(20):
                job.wait(MS).evaluate(2 * MS)
        job.wait(3 * MS).forward(4 * MS).backward(6 * MS).step(2 * MS)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 40
    assert kinds(timeline) == [SegmentKind.EVALUATION] * 2
    assert timeline.training_loaders == ()


def test_inference_from_a_loader_and_without(tmp_path: Path) -> None:
    with_loader, without = JournalBuilder(), JournalBuilder()
    for _ in range(20):
        with_loader.next(MS).evaluate(2 * MS, root=1).evaluate(3 * MS, root=2)
        without.wait(MS).evaluate(2 * MS, root=1).evaluate(3 * MS, root=2)
    for name, job in {"with": with_loader, "without": without}.items():
        timeline = laid_out(job, tmp_path / name)
        assert timeline.mode is Mode.FORWARD
        assert len(timeline.steps.end) == 20
        assert timeline.segments == ()
        assert phases(timeline, 7)[Phase.FORWARD] == 5 * MS
    assert phases(laid_out(with_loader, tmp_path / "again"), 7)[Phase.INPUT] == MS


def test_closure_with_several_backwards_is_the_optimizers_own(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(10):
        job.next(MS)
        with job.within(Kind.OPTIMIZER_STEP, 1):
            for _ in range(5):
                job.span(Kind.ZERO_GRAD, 0).forward(2 * MS).backward(3 * MS).wait(MS)
    timeline = laid_out(job, tmp_path)
    assert timeline.steps.micro_batches.tolist() == [1] * 10  # evaluations of one batch
    assert phases(timeline, 2)[Phase.OPTIMIZER] == 5 * MS
    assert phases(timeline, 2)[Phase.BACKWARD] == 15 * MS


def test_closure_with_one_backward_is_hoisted(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(10):
        job.next(MS)
        with job.within(Kind.OPTIMIZER_STEP, 1):
            job.wait(4 * MS).forward(2 * MS).wait(MS).span(Kind.ZERO_GRAD, MS).backward(3 * MS).wait(2 * MS)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 10
    found = phases(timeline, 2)
    assert found[Phase.OPTIMIZER] == 3 * MS  # what follows the backward, and zero_grad
    assert found[Phase.REST] == 5 * MS


def test_two_optimizers_and_a_subclass_that_calls_super(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(25):
        job.forward(2 * MS).backward(3 * MS)
        with job.within(Kind.OPTIMIZER_STEP, 1):
            job.wait(MS).step(MS, optimizer=1)
        job.step(MS, optimizer=2)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 25
    assert phases(timeline, 9)[Phase.OPTIMIZER] == 3 * MS


def test_optimizers_inside_backward(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(25):
        job.next(MS).forward(2 * MS)
        with job.within(Kind.BACKWARD):
            for optimizer in range(4):
                job.wait(MS).step(MS, optimizer)
            job.wait(MS)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 25
    assert set(timeline.steps.duration.tolist()) == {12 * MS}
    assert phases(timeline, 4)[Phase.OPTIMIZER] == 4 * MS
    assert timeline.steps.micro_batches.tolist() == [1] * 25


def test_reinforcement_learning_alternates_rollouts_and_updates(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(4):
        for _ in range(32):
            job.evaluate(MS, training=True).wait(MS)
        for _ in range(5):
            job.wait(MS).forward(3 * MS).backward(4 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 20
    assert kinds(timeline) == [SegmentKind.ROLLOUT] * 4
    assert timeline.steps.duration[7] == 9 * MS
    assert not timeline.steps.excluded.any()


def test_a_rollout_that_follows_an_evaluation_is_reported_apart_from_it(tmp_path: Path) -> None:
    job = JournalBuilder()
    for iteration in range(8):
        for _ in range(20 if iteration % 4 == 0 else 0):
            job.evaluate(MS).wait(MS)
        for _ in range(32):
            job.evaluate(MS, training=True).wait(MS)
        for _ in range(5):
            job.wait(MS).forward(3 * MS).backward(4 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert Counter(kinds(timeline)) == {SegmentKind.ROLLOUT: 8, SegmentKind.EVALUATION: 2}
    evaluated = [each.end - each.start for each in timeline.segments if each.kind is SegmentKind.EVALUATION]
    assert evaluated == [39 * MS, 39 * MS]


def settings(job: JournalBuilder, *, environments: bool) -> JournalBuilder:
    threads = {"intra_op_threads": 1, "inter_op_threads": 1, "usable_cpus": 1, "logical_cpus": 1}
    return job.fact("settings", **threads, environments=environments)


@pytest.mark.parametrize(
    ("environments", "kind"), [(True, SegmentKind.ROLLOUT), (False, SegmentKind.EVALUATION)]
)  # fmt: skip
def test_a_model_in_evaluation_mode_acts_where_the_job_has_environments(
    tmp_path: Path, environments: bool, kind: SegmentKind
) -> None:
    job = settings(JournalBuilder(), environments=environments)
    for _ in range(4):
        for _ in range(32):
            job.evaluate(MS).wait(MS)
        for _ in range(5):
            job.wait(MS).forward(3 * MS).backward(4 * MS).step(MS)
    assert kinds(laid_out(job, tmp_path)) == [kind] * 4


def test_an_agent_that_acts_in_training_mode_is_evaluated_in_evaluation_mode(tmp_path: Path) -> None:
    job = settings(JournalBuilder(), environments=True)
    for iteration in range(8):
        for _ in range(20 if iteration % 4 == 0 else 0):
            job.evaluate(MS).wait(MS)
        for _ in range(32):
            job.evaluate(MS, training=True).wait(MS)
        for _ in range(5):
            job.wait(MS).forward(3 * MS).backward(4 * MS).step(MS)
    assert Counter(kinds(laid_out(job, tmp_path))) == {SegmentKind.ROLLOUT: 8, SegmentKind.EVALUATION: 2}


def test_a_target_networks_call_is_the_steps_own_and_no_rollout(tmp_path: Path) -> None:
    job = settings(JournalBuilder(), environments=True)
    for step in range(24):
        for _ in range(3 if step % 2 else 5):
            job.evaluate(MS).wait(MS)
        job.evaluate(MS, root=2).forward(3 * MS).backward(4 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert set(kinds(timeline)) <= {SegmentKind.ROLLOUT}
    assert all(each.end - each.start == 9 * MS for each in timeline.segments)


def test_many_samples_before_every_update_are_a_rollout_even_with_a_loader(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(12):
        job.next(MS)
        for _ in range(16):
            job.evaluate(MS, training=False)
        job.forward(3 * MS).backward(4 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert kinds(timeline) == [SegmentKind.ROLLOUT] * 12
    assert timeline.steps.steady.sum() == 11


def test_a_job_that_acts_before_it_trains_rolls_out_though_a_loader_feeds_its_updates(tmp_path: Path) -> None:
    job = JournalBuilder()
    for iterator in range(1, 5):
        for _ in range(32):
            job.evaluate(MS, training=True).wait(MS)
        for _ in range(5):
            job.next(MS, iterator=iterator).forward(3 * MS).backward(4 * MS).step(MS)
    assert kinds(laid_out(job, tmp_path)) == [SegmentKind.ROLLOUT] * 4


def test_a_teacher_is_part_of_the_forward(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(12):
        job.next(MS).evaluate(4 * MS, root=9).forward(3 * MS).backward(4 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert timeline.segments == ()
    assert phases(timeline, 6)[Phase.FORWARD] == 7 * MS


def test_no_optimizer_counts_backwards(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(93):
        job.wait(MS).forward(2 * MS).backward(3 * MS).wait(MS)
    timeline = laid_out(job, tmp_path)
    assert timeline.mode is Mode.BACKWARD
    assert len(timeline.steps.end) == 93


def test_without_an_optimizer_passes_with_the_same_parameters_are_one_step(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(30):
        job.wait(MS).forward(2 * MS).backward(3 * MS, Flag.PARTIAL)
        for _ in range(4):
            job.forward(2 * MS).backward(3 * MS, Flag.PARTIAL | Flag.UNCHANGED)
    timeline = laid_out(job, tmp_path)
    assert timeline.mode is Mode.BACKWARD
    assert len(timeline.steps.end) == 29
    assert set(timeline.steps.duration[1:].tolist()) == {26 * MS}


def test_a_cycle_cut_by_the_end_of_the_job_is_no_step(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(6):
        job.forward(MS).backward(MS).step(MS, optimizer=1).forward(MS).backward(MS).step(MS, optimizer=2)
    job.forward(MS).backward(MS).step(MS, optimizer=1)
    assert len(laid_out(job, tmp_path).steps.end) == 6


def test_steps_without_watch_are_counted_and_not_measured(tmp_path: Path) -> None:
    job = JournalBuilder()
    for turn in range(4):
        for _ in range(5):
            usual_step(job)
        if turn < 3:
            start = job.now
            for _ in range(5):
                job.wait(20 * MS).record(Kind.BOUNDARY, job.now, job.now)
            job.record(Kind.UNTIMED, start, job.now)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 35
    assert timeline.steps.timed.sum() == 20
    off = ~timeline.steps.timed
    assert np.array_equal(timeline.steps.phases[off, Phase.REST], timeline.steps.duration[off])
    assert timeline.steps.steady.sum() == 19


def test_checkpoints_are_segments_when_rare_and_part_of_the_step_when_not(tmp_path: Path) -> None:
    rare, always = JournalBuilder(), JournalBuilder()
    for number in range(20):
        for job in (rare, always):
            usual_step(job)
            if job is always or number == 9:
                job.span(Kind.CHECKPOINT, 50 * MS)
    timeline = laid_out(rare, tmp_path / "rare")
    assert kinds(timeline) == [SegmentKind.CHECKPOINT]
    assert np.flatnonzero(timeline.steps.excluded).tolist() == [10]
    timeline = laid_out(always, tmp_path / "always")
    assert timeline.segments == ()
    assert phases(timeline, 5)[Phase.REST] == 53 * MS


def test_a_loader_made_anew_for_every_batch_is_input(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(12):
        job.start(30 * MS, number)
        usual_step(job, number)
    timeline = laid_out(job, tmp_path)
    assert timeline.segments == ()
    assert phases(timeline, 5)[Phase.INPUT] == 33 * MS


def test_an_iterator_made_long_before_its_first_batch_hides_no_training(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(6):
        usual_step(job, 1)
    start = job.now
    usual_step(job, 1)
    job.record(Kind.LOADER_START, start, job.now, 2)
    for _ in range(6):
        usual_step(job, 2)
    timeline = laid_out(job, tmp_path)
    assert phases(timeline, 6)[Phase.BACKWARD] == 8 * MS


def test_pauses_and_windows_disturb_and_pauses_are_subtracted(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(30):
        start = job.now
        if number == 20:
            job.span(Kind.PAUSE, 100 * MS)
        usual_step(job)
        if number in (3, 4):
            job.record(Kind.DISCOVERY, start, job.now)
        if number == 20:
            job.record(Kind.PROFILED, start, job.now, 1)
    timeline = laid_out(job, tmp_path)
    assert np.flatnonzero(timeline.steps.excluded).tolist() == [3, 4, 20]
    assert np.flatnonzero(timeline.steps.profiled).tolist() == [20]
    assert timeline.steps.duration[20] == 21 * MS


def test_what_ends_a_window_is_none_of_the_step_behind_it_however_long_it_takes(tmp_path: Path) -> None:
    """In a job of few steps, each of which counts."""
    job, starts = JournalBuilder(), []
    for number in range(8):
        starts.append(job.now)
        if number == 4:
            job.span(Kind.PAUSE, 200 * MS)
            job.record(Kind.PROFILED, starts[3], starts[4] + 20 * MS, 1)
        usual_step(job)
        if number in (2, 5, 6, 7):
            job.record(Kind.LINES, starts[-1], job.now)
    steps = laid_out(job, tmp_path).steps
    assert np.flatnonzero(steps.profiled).tolist() == [3]
    assert steps.steady.tolist() == [False, True, True, False, True, True, True, True]


def test_a_short_step_is_profiled_however_long_its_window_takes_to_start(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(20):
        if number == 10:
            job.span(Kind.PAUSE, 1000 * MS)
        start = job.now
        usual_step(job)
        if number == 10:
            job.record(Kind.PROFILED, start, job.now, 1)
    assert np.flatnonzero(laid_out(job, tmp_path).steps.profiled).tolist() == [10]


def test_a_step_stays_in_the_mean_where_the_probe_paused_for_a_moment(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(20):
        if number in (10, 11):
            job.span(Kind.PAUSE, MS // 10 if number == 10 else MS)
        usual_step(job)
    steps = laid_out(job, tmp_path).steps
    assert np.flatnonzero(steps.excluded).tolist() == [11]
    assert steps.duration[10] == steps.duration[12]


def test_recompilations_are_segments_that_disturb(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(20):
        job.next(MS)
        with job.within(Kind.FORWARD, 1, Flag.GRADIENT | Flag.TRAINING):
            if number in (0, 12):
                job.span(Kind.COMPILE, 900 * MS)
            job.wait(2 * MS)
        job.backward(3 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert kinds(timeline) == [SegmentKind.COMPILATION] * 2
    assert timeline.steps.duration[12] == 7 * MS
    assert np.flatnonzero(timeline.steps.excluded).tolist() == [0, 12]


def test_other_threads_do_not_take_steps(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(10):
        usual_step(job)
        job.thread = 1
        if number < 4:
            job.forward(MS).backward(MS).step(MS, optimizer=7)
        job.thread = 0
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == 10


def test_warm_up_ends_where_times_settle(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(60):
        job.next(MS).forward((40 if number < 7 else 5) * MS + number % 3).backward(3 * MS).step(MS)
    timeline = laid_out(job, tmp_path)
    assert timeline.steps.warm_up.sum() == 7
    assert timeline.warm_up_reason == "the first 7 steps were slower than the rest"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_any_steps(tmp_path: Path, count: int) -> None:
    job = JournalBuilder()
    for _ in range(count):
        usual_step(job)
    timeline = laid_out(job, tmp_path)
    assert len(timeline.steps.end) == count
    assert timeline.steps.steady.sum() == max(0, count - 1)


def test_nothing_but_a_loader(tmp_path: Path) -> None:
    assert len(laid_out(JournalBuilder().start(MS).next(MS), tmp_path).steps.end) == 0


@pytest.mark.parametrize(("trains", "phase"), [(True, Phase.REST), (False, Phase.INPUT)])
def test_a_line_that_waits_for_the_loader_prepares_the_batch_unless_it_trains_too(
    tmp_path: Path, trains: bool, phase: Phase
) -> None:
    text = {"line": 7, "text": "for batch in loader: fit(batch)", "stores": ["batch"], "loads": ["loader", "fit"]}
    job = JournalBuilder().fact("code", base=1, file="a.py", function="fit", first_line=7, loop=True, lines=[text])
    for number in range(20):
        start = job.now
        with job.within(Kind.LINE, 1) if number in (10, 11, 12) else nullcontext():
            job.next(5 * MS).wait(4 * MS)
            if trains:
                job.forward(2 * MS).backward(3 * MS).step(MS)
        if not trains:
            job.forward(2 * MS).backward(3 * MS).step(MS)
        if number == 12:
            job.record(Kind.LINES, start - 30 * MS, job.now)
    spent = phases(laid_out(job, tmp_path), 11)
    assert spent[phase] == (4 if trains else 9) * MS
