"""The model of supply and demand behind every word about workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from steptime.advice.evidence import Case
from steptime.advice.loader_model import HANDOVER, LOCKED, MEMORY_BOUND, MOST_WORKERS, production, supply
from steptime.advice.models import at_once
from steptime.advice.run_uses import Contention, LoaderUse, SettingsUse, StepSummary
from steptime.quantities import Estimate

MS = 1e6


def sure(value: float) -> Estimate:
    return Estimate(value, value, value, 50)


def step(duration: float, device: str = "cpu") -> StepSummary:
    return StepSummary(sure(duration), 100, 80, 5, "optimizer", device)


def loader(wait: float, item: float, workers: int, cpus: int = 16, **more: float) -> LoaderUse:
    collate, demand = sure(more.get("collate", 0.0)), more.get("demand", 1.0)
    return LoaderUse(
        "Images", 10, workers, sure(wait), item=sure(item), collate=collate, usable_cpus=cpus, demand=demand
    )


def test_production_counts_items_collating_and_all_batches_of_a_step() -> None:
    assert production(loader(0, 2 * MS, 0, collate=5 * MS, demand=4.0)) == 100 * MS


def test_workers_needed_is_production_over_the_step_without_its_wait() -> None:
    model = supply(Case(step(50 * MS)), loader(40 * MS, 4 * MS, 0))
    assert model is not None
    assert (model.production, model.consumption, model.needed) == (40 * MS, 10 * MS, 4)
    assert model.best == 4
    assert model.step(0) == 50 * MS
    assert model.step(2) == 20 * MS + HANDOVER, "a worker is asked for a batch while it is at the next one"
    assert model.step(8) == 10 * MS + 2 * HANDOVER


def test_what_was_not_timed_gives_no_model() -> None:
    use = LoaderUse("Images", 10, 0, sure(40 * MS))
    assert supply(Case(step(50 * MS)), use) is None


def test_workers_are_bounded_by_the_usable_cpus() -> None:
    model = supply(Case(step(50 * MS)), loader(40 * MS, 4 * MS, 0, cpus=3))
    assert model is not None
    assert model.needed == 4
    assert model.best == 3


def waiting(busy: float | None, batches: int | None = None) -> LoaderUse:
    """20 ms a sample: 170, 84, 44 and 29 ms per step were measured with 1, 2, 4 and 8 workers on two CPUs."""
    return replace(loader(163 * MS, 16.3 * MS, 0, cpus=2), busy=busy, batches=batches)


@pytest.mark.parametrize(
    ("busy", "limit", "fewest"),
    [(None, 2, 2), (1.0, 2, 2), (0.97, 2, 2), (0.5, 4, 4), (0.02, 64, 20)],
)
def test_workers_are_bounded_by_the_cpus_that_their_items_need(busy: float | None, limit: int, fewest: int) -> None:
    idle = Contention(0.0, 0.05 + (busy or 0.0), 2, None, 0.0)
    model = supply(Case(step(170 * MS), contention=idle if busy != 0.5 else None), waiting(busy))
    assert model is not None
    assert (model.limit, model.bounded_by) == (limit, MEMORY_BOUND if limit == MOST_WORKERS else "2 usable CPUs")
    assert fewest <= model.best <= limit
    assert [model.step(number) for number in (2, 4)] == sorted((model.step(2), model.step(4)), reverse=True)


def test_items_that_wait_bound_workers_by_the_batches_of_an_epoch_and_the_memory_of_the_host() -> None:
    few = supply(Case(step(170 * MS)), waiting(0.01, batches=96))
    assert few is not None
    assert (few.limit, few.best, few.bounded_by) == (12, 12, "8 batches of an epoch for each")
    eight = SettingsUse(intra_op_threads=1, usable_cpus=2, logical_cpus=2, trainers_on_host=8)
    shared = supply(Case(step(170 * MS), settings=eight), waiting(0.01))
    assert shared is not None
    assert (shared.limit, shared.bounded_by) == (8, MEMORY_BOUND)


def test_on_one_cpu_that_is_busy_no_worker_helps_but_a_sleeping_item_is_hidden() -> None:
    busy = supply(
        Case(step(50 * MS), contention=Contention(0.0, 1.0, 1, None, 0.0)), loader(40 * MS, 4 * MS, 0, cpus=1)
    )
    assert busy is not None
    assert busy.best == 0
    asleep = supply(
        Case(step(50 * MS), contention=Contention(0.0, 0.2, 1, None, 0.0)), loader(40 * MS, 4 * MS, 0, cpus=1)
    )
    assert asleep is not None
    assert asleep.best == 1


def test_two_hyperthreads_of_a_core_hide_less_than_two_cores_would() -> None:
    use, step_now = loader(25 * MS, 2 * MS, 0, cpus=2), step(50 * MS)
    cores = supply(Case(step_now, contention=Contention(0.0, 1.0, 2, None, 0.0, together=2.0)), use)
    siblings = supply(Case(step_now, contention=Contention(0.0, 1.0, 2, None, 0.0, together=1.25)), use)
    assert cores is not None
    assert siblings is not None
    assert cores.step(1) == pytest.approx(25 * MS + (1 + 20 / 25) * HANDOVER)
    assert siblings.step(1) == pytest.approx(40 * MS)


def test_receiving_batches_costs_what_this_machine_takes_for_each_of_them() -> None:
    use, step_now = loader(25 * MS, 1 * MS, 0, cpus=2, demand=2.0), step(100 * MS)
    slow = supply(Case(step_now, contention=Contention(0.0, 1.0, 2, None, 0.0, handover=4 * MS)), use)
    unknown = supply(Case(step_now, contention=Contention(0.0, 1.0, 2, None, 0.0)), use)
    assert slow is not None
    assert unknown is not None
    assert slow.step(1) == pytest.approx(75 * MS + (1 + 20 / 75) * 2 * 4 * MS)
    assert unknown.step(1) == pytest.approx(75 * MS + (1 + 20 / 75) * 2 * HANDOVER)


def test_no_worker_hides_the_first_batch_of_an_epoch() -> None:
    use = replace(loader(25 * MS, 2.5 * MS, 0, cpus=8), starts=3, steps_per_start=5.0)
    short = supply(Case(step(50 * MS)), use)
    assert short is not None
    assert short.step(0) == 50 * MS
    assert short.step(1) == pytest.approx(25 * MS + 2 * HANDOVER + 2 * 25 * MS / 5)
    anew_each_step = supply(Case(step(50 * MS)), replace(use, steps_per_start=1.0))
    assert anew_each_step is not None
    assert anew_each_step.best == 0


def test_a_worker_answers_late_where_it_computes_its_next_batch_and_at_once_where_it_sleeps() -> None:
    use = replace(loader(100 * MS, 10 * MS, 0, cpus=8), starts=3, steps_per_start=10.0)
    computing = supply(Case(step(110 * MS), contention=Contention(0.0, 1.0, 8, None, 0.0)), use)
    sleeping = supply(Case(step(110 * MS), contention=Contention(0.0, 10 / 110, 8, None, 0.0)), use)
    assert computing is not None
    assert sleeping is not None
    assert computing.step(1) == pytest.approx(100 * MS + HANDOVER + (100 * MS + LOCKED) / 10)
    assert sleeping.step(1) == pytest.approx(100 * MS + 100 * MS / 10)


def test_epochs_of_a_loader_with_workers_began_while_it_was_measured() -> None:
    use = replace(loader(25 * MS, 2.5 * MS, 1, cpus=8), starts=3, steps_per_start=5.0)
    model = supply(Case(step(50 * MS)), use)
    assert model is not None
    assert model.step(2) == 25 * MS + 2 * HANDOVER


def test_without_workers_the_training_is_not_slowed_by_them_either() -> None:
    slow = Contention(0.0, 1.0, 8, None, 0.0, handover=4 * MS)
    with_one, without = (
        supply(Case(step(50 * MS), contention=slow), loader(10 * MS, 1 * MS, workers)) for workers in (1, 0)
    )
    assert with_one is not None
    assert without is not None
    assert with_one.step(0) == pytest.approx(40 * MS + 10 * MS - 1 * MS)
    assert without.step(0) == 50 * MS, "there are none"
    quick = supply(Case(step(11 * MS), contention=slow), loader(10 * MS, 0.1 * MS, 1))
    assert quick is not None
    assert quick.step(0) == pytest.approx(1 * MS + 0.5 * MS), "never more than half of the training"


@pytest.mark.parametrize(
    ("busy", "together", "does"), [(1, None, 1), (4, 6.0, 4), (6, 6.0, 5), (8, 6.0, 6), (8, 3.0, 3), (4, 3.0, 1.5)]
)
def test_cpus_work_as_if_alone_until_their_cores_are_shared(busy: float, together: float | None, does: float) -> None:
    assert at_once(busy, Contention(0.0, 1.0, 8, None, 0.0, together=together)) == pytest.approx(does)


def test_threads_of_the_training_process_count_against_the_cpus_where_it_computes_itself() -> None:
    settings = SettingsUse(intra_op_threads=2, usable_cpus=2, logical_cpus=2)
    use = loader(20 * MS, 2 * MS, 0, cpus=2)
    on_cpu = supply(Case(step(40 * MS), settings=settings), use)
    on_device = supply(Case(step(40 * MS, "cuda"), settings=settings), use)
    assert on_cpu is not None
    assert on_device is not None
    assert on_cpu.step(1) == pytest.approx(40 * MS)
    assert on_cpu.step(2) == pytest.approx(35 * MS)
    assert on_device.step(1) == pytest.approx(20 * MS + 2 * HANDOVER)


TWO_THREADS = SettingsUse(intra_op_threads=2, usable_cpus=2, logical_cpus=2)


def test_a_worker_on_a_cpu_of_the_trainings_threads_hides_nothing() -> None:
    """As measured: 14 ms of training and 26 ms of items took 38 to 42 ms with one worker, 33 to 41 with two."""
    working = Contention(0.0, 54 / 40, 2, None, 0.0)
    model = supply(Case(step(40 * MS), settings=TWO_THREADS, contention=working), loader(26 * MS, 2.6 * MS, 0, cpus=2))
    assert model is not None
    assert model.step(1) == pytest.approx(40 * MS)
    assert model.step(2) == pytest.approx((14 + 13 + 6.5) * MS)
    room = supply(
        Case(step(40 * MS), settings=TWO_THREADS, contention=replace(working, usable_cpus=4)),
        loader(26 * MS, 2.6 * MS, 0, cpus=4),
    )
    assert room is not None
    assert room.step(2) == pytest.approx(14 * MS + 2 * HANDOVER), "two CPUs are the workers' own"
    assert room.step(3) > room.step(2)


def test_a_worker_that_sleeps_takes_no_cpu_from_anybody() -> None:
    asleep = Contention(0.0, 28 / 40, 2, None, 0.0)
    model = supply(Case(step(40 * MS), settings=TWO_THREADS, contention=asleep), loader(26 * MS, 2.6 * MS, 0, cpus=2))
    assert model is not None
    assert model.step(1) == pytest.approx(26 * MS + 7 / 26 * HANDOVER)
    crowded = supply(
        Case(step(40 * MS), settings=TWO_THREADS, contention=replace(asleep, other_cpu=1.0)),
        loader(26 * MS, 2.6 * MS, 0, cpus=2),
    )
    assert crowded is not None
    assert crowded.step(1) == pytest.approx(40 * MS), "it may have waited for a CPU"


@pytest.mark.parametrize(("threads", "device"), [(1, "cpu"), (2, "cuda")])
def test_one_thread_moves_out_of_a_workers_way(threads: int, device: str) -> None:
    settings = replace(TWO_THREADS, intra_op_threads=threads)
    idle = Contention(0.0, 1.0, 2, None, 0.0)
    model = supply(
        Case(step(40 * MS, device), settings=settings, contention=idle), loader(26 * MS, 2.6 * MS, 0, cpus=2)
    )
    assert model is not None
    assert model.step(1) == pytest.approx(26 * MS + HANDOVER)


def test_what_is_measured_alongside_workers_on_the_same_cpus_is_not_taken_for_what_it_is_alone() -> None:
    """98 ms of training next to two workers that take 51 ms a batch, measured; with one worker 107 to 120 ms were."""
    busy = Contention(0.0, 1.9, 2, None, 0.0)
    model = supply(Case(step(101 * MS), settings=TWO_THREADS, contention=busy), loader(3 * MS, 5.1 * MS, 2, cpus=2))
    assert model is not None
    assert model.consumption < 90 * MS
    assert 20 * MS < model.production < 30 * MS
    assert 107 * MS < model.step(1) < 120 * MS
    assert model.best == 2


@given(
    st.floats(0, 1e9), st.floats(0, 1e8), st.integers(0, 32), st.integers(1, 64), st.floats(0, 64), st.floats(0, 1e9)
)
def test_the_best_number_is_the_smallest_that_is_nearly_as_good_as_any(
    wait: float, item: float, workers: int, cpus: int, job_cpu: float, rest: float
) -> None:
    model = supply(
        Case(step(wait + rest), contention=Contention(0.0, job_cpu, cpus, None, 0.0)), loader(wait, item, workers, cpus)
    )
    assert model is not None
    predicted = [model.step(number) for number in range(cpus + 1)]
    assert 0 <= model.best <= cpus
    assert predicted[model.best] <= 1.03 * min(predicted)
    assert all(each > 1.03 * min(predicted) for each in predicted[: model.best])
