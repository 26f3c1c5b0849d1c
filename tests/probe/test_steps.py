"""The online step counter, told what torch would tell it, finds the boundaries that a person would draw."""

from __future__ import annotations

from pathlib import Path

from steptime.journal import Journal, Kind, head
from steptime.probe.steps import BACKWARD, FORWARD, OPTIMIZER, Slower, StepCounter, StepNumber, StepTimer, Untrained


def backward(counter: StepCounter, *updates: int, partial: bool = False) -> bool:
    counter.backward_starts()
    for optimizer in updates:
        update(counter, optimizer)
    return counter.backward_ends()


def update(counter: StepCounter, optimizer: int, *, nested: int = 0, backwards: int = 0) -> bool:
    counter.update_starts(optimizer)
    for _ in range(backwards):
        backward(counter)
    for _ in range(nested):
        counter.update_starts(optimizer)
        assert not counter.update_ends()
    return counter.update_ends()


def test_one_optimizer_ends_a_step_each_time() -> None:
    counter = StepCounter()
    boundaries = [(backward(counter), update(counter, 1)) for _ in range(5)]
    assert boundaries == [(False, True)] * 5
    assert counter.mode == OPTIMIZER


def test_two_optimizers_of_a_gan_end_one_step_together() -> None:
    counter = StepCounter()
    boundaries = [(update(counter, 1), update(counter, 2)) for _ in range(4)]
    assert boundaries[1:] == [(False, True)] * 3


def test_accumulation_counts_no_backward_as_a_step() -> None:
    counter = StepCounter()
    boundaries = [[backward(counter) for _ in range(4)] + [update(counter, 1)] for _ in range(3)]
    assert boundaries[1:] == [[False] * 4 + [True]] * 2


def test_long_accumulation_changes_the_mode_once_and_says_so() -> None:
    counter = StepCounter()
    first = [backward(counter) for _ in range(8)]
    assert first == [False, False] + [True] * 6
    assert counter.mode == BACKWARD
    assert update(counter, 1)
    assert counter.changed
    assert counter.mode == OPTIMIZER


def test_a_closure_with_backwards_inside_is_one_step() -> None:
    counter = StepCounter()
    assert [update(counter, 1, backwards=5) for _ in range(3)] == [True] * 3


def test_a_subclass_that_calls_its_parents_step_counts_once() -> None:
    counter = StepCounter()
    assert [update(counter, 1, nested=1) for _ in range(3)] == [True] * 3


def test_optimizers_inside_backward_end_the_step_with_the_backward() -> None:
    counter = StepCounter()
    assert [backward(counter, 1, 2, 3, 4) for _ in range(3)] == [True] * 3
    assert counter.mode == OPTIMIZER


def test_backward_is_the_boundary_where_nothing_updates() -> None:
    counter = StepCounter()
    assert [backward(counter) for _ in range(5)] == [False, False, True, True, True]
    assert counter.mode == BACKWARD


def test_a_gradient_penalty_does_not_end_a_step() -> None:
    counter = StepCounter()
    update(counter, 1)
    assert not backward(counter, partial=True)
    assert not backward(counter)
    assert update(counter, 1)


def test_forwards_count_only_while_the_job_infers() -> None:
    counter = StepCounter()
    assert not counter.forward_ends()
    counter.infer()
    assert counter.forward_ends()
    assert counter.mode == FORWARD
    backward(counter)
    assert not counter.forward_ends()


def test_unwatched_updates_keep_the_length_of_the_cycle() -> None:
    counter = StepCounter()
    for _ in range(3):
        update(counter, 1)
        update(counter, 2)
    assert [counter.untimed_update() for _ in range(4)] == [False, True, False, True]
    assert [update(counter, 1), update(counter, 2), update(counter, 1), update(counter, 2)] == [False, True] * 2


def test_ends_whose_start_was_not_reported_are_passed_over() -> None:
    counter = StepCounter()
    update(counter, 1)
    assert not counter.update_ends()
    assert not counter.backward_ends()
    assert update(counter, 1)


def test_the_next_rollout_is_expected_as_far_away_as_the_last_one_was() -> None:
    untrained = Untrained()
    for step in range(1, 20):
        untrained.now = 30 if step % 8 == 1 else 1
        untrained.boundary(step)
    assert (untrained.latest, untrained.distance) == (17, 8)
    assert untrained.steps_to_next(19) == 5  # step 25 starts when step 24 has ended


def test_steps_that_became_slower_are_reported_once() -> None:
    slower = Slower(10)
    assert not any(slower.step(each) for each in [10, 11, 9, 10, 40, 10, 11, 10] * 5)  # a stall is no new level
    assert sum(slower.step(20 + each % 2) for each in range(40)) == 1


def test_slow_first_steps_do_not_hide_what_grows_after_them() -> None:
    slower = Slower(30)
    assert not any(slower.step(10) for _ in range(8))
    assert any(slower.step(10 + each) for each in range(12))


def test_a_job_that_warms_up_has_no_slower_steps() -> None:
    slower = Slower(30)
    assert not any(slower.step(max(10, 30 - each)) for each in range(60))


def filled(journal: Journal, steps: int, after: int = 0) -> int:
    """Steps of 10 ns with three records each; returns when the last one ended."""
    for number in range(1, steps + 1):
        end = after + 10 * number
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP):
            journal.records.extend((head(kind, 0, 1, 7), end - 3, end))
    return after + 10 * steps


ENDING = head(Kind.OPTIMIZER_STEP, 0, 1, 7)


def test_steps_of_which_nobody_was_reported_are_counted_by_their_records_written_or_not(tmp_path: Path) -> None:
    journal = Journal()
    journal.open(str(tmp_path / "journal.bin"))
    ended = StepNumber(journal)
    end = filled(journal, 1)
    assert ended.one(ENDING, False) == 1
    for _ in range(3):
        end = filled(journal, 20, end)
        journal.flush()
        end = filled(journal, 20, end)
        before = ended.reported
        steps = ended.one(ENDING, True)
        assert ended.reported == before + 1
    assert steps == 121
    filled(journal, 1, end)
    assert ended.one(ENDING, False) == 122


def test_a_step_is_counted_again_where_another_thread_was_writing_its_records(tmp_path: Path) -> None:
    journal = Journal()
    ended = StepNumber(journal)
    end = filled(journal, 1)
    ended.one(ENDING, False)
    end = filled(journal, 9, end)
    with journal._flushing:
        assert ended.one(ENDING, True) == 2
    filled(journal, 1, end)
    assert ended.one(ENDING, True) == 11


def test_another_optimizer_that_ends_the_steps_goes_on_with_the_count() -> None:
    journal = Journal()
    ended = StepNumber(journal)
    end = filled(journal, 1)
    ended.one(ENDING, False)
    other = head(Kind.OPTIMIZER_STEP, 0, 1, 9)
    end = filled(journal, 4, end)
    assert ended.one(other, True) == 5
    journal.records.extend((other, end, end + 1) * 3)
    assert ended.one(other, True) == 8


def test_the_step_before_the_last_one_is_known_from_its_records(tmp_path: Path) -> None:
    journal = Journal()
    journal.open(str(tmp_path / "journal.bin"))
    ended = StepNumber(journal)
    end = filled(journal, 2)
    ended.one(ENDING, False)
    assert ended.step_before() == (0, 0)
    end = filled(journal, 3, end)
    assert ended.step_before() == (end - 20, end - 10)
    journal.flush()
    filled(journal, 1, end)
    assert ended.step_before() == (end - 10, end)


def test_what_is_usual_holds_where_most_steps_are_passed_over() -> None:
    step_timer, time, steps = StepTimer(), 0, 0
    for number in range(40):  # each visit makes its step longer, and an evaluation lies in one interval of three
        time, steps = time + 5000 + (900 if number % 3 == 0 else 0), steps + 50
        step_timer.boundary(time, steps)
        time, steps = time + 160, steps + 1
        step_timer.boundary(time, steps)
    assert step_timer.usual() == 100


def test_what_is_usual_is_the_median_where_every_step_is_reported() -> None:
    step_timer = StepTimer()
    assert step_timer.usual() == 0
    for number, time in enumerate((0, 10, 20, 31, 131, 141)):
        step_timer.boundary(time, number)
    assert step_timer.usual() == 10


def test_a_pass_with_the_parameters_of_the_one_before_ends_no_step() -> None:
    counter, ends = StepCounter(), []
    for number in range(12):
        counter.backward_starts()
        ends.append(counter.backward_ends(number % 4 != 0))
    assert [number for number, end in enumerate(ends) if end] == [4, 8]


def test_without_timers_updates_are_counted_by_the_last_whole_cycle_not_by_one_that_the_pause_has_torn() -> None:
    counter = StepCounter()
    for _ in range(3):
        for optimizer in (1, 2, 3):
            update(counter, optimizer)
    assert [counter.untimed_update() for _ in range(6)] == [False, False, True] * 2
    assert not counter.untimed_update()  # the timers come back behind the first of three
    for optimizer in (2, 3, 1, 2):
        update(counter, optimizer)
    assert sum(counter.untimed_update() for _ in range(6)) == 2
