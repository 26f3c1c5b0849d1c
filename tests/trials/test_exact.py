"""What a job carries from step to step is compared: options, modes, averages; and honest changes of structure pass."""

from __future__ import annotations

import json

from steptime.recording.parity import StepWork
from steptime.trials.exact import (
    carried_less,
    exactness,
    left_out,
    other_buffers,
    other_modes,
    other_options,
    other_parameters,
    unclipped,
)
from steptime.trials.judge import next_in_float64
from steptime.trials.trial import AS_IT_IS, BASELINE, Run, Variant

FIRST = [1.0, *[0.0] * 15]


def run(*work: StepWork, rehearsal: bool = False, exact: bool = False, variant: str = "diff-1") -> Run:
    return Run(variant, 0, 0, 0, 0, rehearsal, "", 1.0, work=work, exact=exact)


def moved(by: float, dtype: str = "torch.float64") -> StepWork:
    return StepWork(ways=(("weight", dtype, 1.0, (by, *FIRST[1:])),))


def test_the_same_parameters_in_float64_are_the_same_training_and_others_are_not() -> None:
    job = run(moved(1.0), rehearsal=True, exact=True, variant=BASELINE)
    same, other = (exactness([run(moved(by), rehearsal=True, exact=True)], [job]) for by in (1.0 + 1e-12, 1.001))
    assert same is not None
    assert same.same
    assert other is not None
    assert not other.same
    assert other.repeats is None  # the job was rehearsed once: what differs by itself is not known


def test_nothing_is_proved_by_a_rehearsal_that_was_not_in_float64() -> None:
    job = run(moved(1.0), rehearsal=True, exact=True, variant=BASELINE)
    assert exactness([run(moved(1.0, "torch.float32"), rehearsal=True, exact=True)], [job]) is None


def test_fewer_modules_alongside_frozen_ones_are_no_other_mode() -> None:
    job = run(*[StepWork(training=0.8, dropout=0.0)] * 3)
    assert other_modes(run(*[StepWork(training=0.75, dropout=0.0)] * 3), [job]) == ""
    later = [StepWork(training=0.75, dropout=0.0), StepWork(training=0.5, dropout=0.0)]
    assert "In step 2, 50 % of its modules are in training mode, not 75 %" in other_modes(run(*later), [job])


def test_groups_that_are_merged_have_the_same_options() -> None:
    several = StepWork(options=((json.dumps({"lr": 0.1}), 3), (json.dumps({"lr": 0.1}), 4)))
    merged = StepWork(options=((json.dumps({"lr": 0.1, "eps": 1e-8}), 7),))
    assert other_options(run(merged), [run(several)]) == ""
    other = StepWork(options=((json.dumps({"lr": 0.2}), 7),))
    assert "lr 0.2 in place of 0.1" in other_options(run(other), [run(several)])


def test_an_average_in_one_piece_is_the_average_and_none_is_none() -> None:
    weights = (("weight", 32, tuple(FIRST)),)
    job = run(StepWork(weights=weights, carried=(("4x8", tuple(FIRST)),)), rehearsal=True, variant=BASELINE)
    flat = run(StepWork(weights=weights, carried=(("32", tuple(FIRST)),)), rehearsal=True)
    assert left_out(flat, [job]) == ""
    gone = run(StepWork(weights=weights), rehearsal=True)
    assert "an average of the weights" in left_out(gone, [job])


def test_an_average_that_stands_still_from_some_step_on_is_less_work_where_the_job_goes_on() -> None:
    def timed(*moving: int) -> Run:
        weights = StepWork(weights=(("weight", 100, tuple(FIRST)),))
        return run(weights, *(StepWork(moving=each) for each in moving))

    job = [timed(300, 300, 300)]
    assert "In step 3, it does not update 100 numbers" in carried_less(timed(300, 200, 200), job)
    assert carried_less(timed(200, 200, 200), job) == ""  # kept in another form, as the rehearsals show
    assert carried_less(timed(300, 200, 300), [timed(300, 200, 300)]) == ""  # an update was left out in both


def test_what_its_rehearsal_refuses_is_not_rehearsed_in_float64() -> None:
    def rehearsed(decay: float, name: str) -> Run:
        return run(StepWork(options=((json.dumps({"weight_decay": decay}), 3),)), rehearsal=True, variant=name)

    honest, cheat = (Variant(name, sources=(("train.py", name),)) for name in ("diff-1", "diff-2"))
    runs = (rehearsed(0.1, BASELINE), rehearsed(0.1, "diff-1"), rehearsed(0.0, "diff-2"))
    assert next_in_float64((cheat,), runs, AS_IT_IS) == []
    assert next_in_float64((honest, cheat), runs, AS_IT_IS) == (AS_IT_IS,)
    job = run(moved(1.0), rehearsal=True, exact=True, variant=BASELINE)
    assert next_in_float64((honest, cheat), (*runs, job), AS_IT_IS) == [honest]


def buffers(*values: float) -> StepWork:
    held = tuple(("16", (each, *FIRST[1:])) for each in values)
    return StepWork(ways=moved(1.0).ways, buffers=held)


def test_statistics_that_are_not_updated_are_no_faster_training() -> None:
    job = [run(buffers(0.5, 0.25), rehearsal=True, exact=True, variant=BASELINE)] * 2
    change = Variant("diff-1")
    assert other_buffers(change, run(buffers(0.25, 0.5, 3.0), rehearsal=True, exact=True), job) == ""
    found = other_buffers(change, run(buffers(0.5), rehearsal=True, exact=True), job)
    assert "1 of 2 buffers that the job updates" in found
    apart = run(StepWork(ways=moved(1.1).ways), rehearsal=True, exact=True)
    assert other_buffers(change, apart, job) == ""  # they follow the parameters, and these are judged


def test_gradients_that_are_no_longer_clipped_are_another_training() -> None:
    job = [run(StepWork(updated=(2.0, 1.0)), StepWork(updated=(0.5, 0.5)))]
    assert unclipped(run(StepWork(updated=(2.1, 1.0)), StepWork(updated=(0.6, 0.6))), job) == ""
    assert unclipped(run(StepWork(updated=(0.9, 0.9))), job) == ""  # there was nothing to clip
    found = unclipped(run(StepWork(updated=(2.1, 2.1))), job)
    assert "In step 1, gradients of norm 2.1 come to the optimizer unclipped" in found


def test_rounding_of_a_job_in_16_bits_and_other_draws_are_no_lower_precision() -> None:
    exact = [run(moved(1.0), rehearsal=True, exact=True, variant=name) for name in (BASELINE, BASELINE, "diff-1")]

    def refused(low: bool, batch: float) -> bool:
        def single(by: float, batch: float, name: str) -> Run:
            work = StepWork(ways=moved(by, "torch.float32").ways, low=low, batches=(((batch, *FIRST[1:]),),))
            return run(work, rehearsal=True, variant=name)

        mine, theirs = single(1.003, batch, "diff-1"), single(1.0, 1.0, BASELINE)
        return bool(other_parameters(Variant("diff-1"), [exact[2], mine], [*exact[:2], theirs]))

    assert refused(low=False, batch=1.0)
    assert not refused(low=True, batch=1.0)
    assert not refused(low=False, batch=2.0)
