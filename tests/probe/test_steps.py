"""The online step counter, told what torch would tell it, finds the boundaries that a person would draw."""

from __future__ import annotations

from steptime.probe.steps import BACKWARD, FORWARD, OPTIMIZER, Slower, StepCounter, Untrained


def backward(counter: StepCounter, *updates: int, partial: bool = False) -> bool:
    counter.backward_begins()
    for optimizer in updates:
        update(counter, optimizer)
    return counter.backward_ends()


def update(counter: StepCounter, optimizer: int, *, nested: int = 0, backwards: int = 0) -> bool:
    counter.update_begins(optimizer)
    for _ in range(backwards):
        backward(counter)
    for _ in range(nested):
        counter.update_begins(optimizer)
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
    assert [counter.unwatched_update() for _ in range(4)] == [False, True, False, True]
    assert [update(counter, 1), update(counter, 2), update(counter, 1), update(counter, 2)] == [False, True] * 2


def test_ends_whose_begin_was_not_told_are_passed_over() -> None:
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
    assert untrained.steps_to_next(19) == 5  # step 25 begins when step 24 has ended


def test_steps_that_became_slower_are_told_once() -> None:
    slower = Slower(10)
    assert not any(slower.step(each) for each in [10, 11, 9, 10, 40, 10, 11, 10] * 5)  # a stall is no new level
    assert sum(slower.step(20 + each % 2) for each in range(40)) == 1
