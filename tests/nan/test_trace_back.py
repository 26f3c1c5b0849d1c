"""From what the processes have written to one account."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from documents import text_of

from steptime.nan.answer import answer_of
from steptime.nan.cause import cause_of, growth_factor, growth_of, trace_back
from steptime.nan.nonfinite import NonFiniteOrigin, ProcessNumerics, Trigger, ValueRange, read_numerics
from steptime.quantities import SourceLine

OVERFLOW = NonFiniteOrigin(
    operator="aten::mm",
    phase="forward",
    site=SourceLine("/home/ada/job/model.py", 12, "forward", "return x @ y"),
    step=9,
    inputs=(ValueRange("self", "float32", (8, 8), 64, low=-1e30, high=1e30),),
    outputs=(ValueRange("", "float32", (8, 8), 64, infinite=64),),
    rows=tuple(range(8)),
)
WATCHED = ProcessNumerics(
    "watch",
    steps=9,
    rank=0,
    trigger=Trigger("loss", 9, "nan"),
    history=tuple((step, 1.0, norm) for step, norm in enumerate((1.0, 2.0, 9.0, 300.0, 2e9), start=4)),
)


def seen(rank: int, origin: NonFiniteOrigin | None, step: int = 9) -> ProcessNumerics:
    return ProcessNumerics("instrument", rank=rank, trigger=Trigger("gradient", step, "nan"), origin=origin)


def test_the_rank_that_has_it_from_another_is_not_blamed() -> None:
    received = replace(OVERFLOW, kind="collective", operator="")
    account = trace_back(("python",), (WATCHED, replace(WATCHED, rank=1)), (seen(0, received), seen(1, OVERFLOW)))
    assert account.rank == 1
    assert account.ranks == 2
    assert account.origin == OVERFLOW


GRADIENT = replace(WATCHED, trigger=Trigger("gradient", 9, "nan", "Linear.weight"))


def test_a_loss_comes_before_the_gradients_of_the_same_step_on_other_ranks() -> None:
    watched = (GRADIENT, replace(WATCHED, rank=1))
    alone = trace_back(("python",), watched)
    assert alone.trigger is not None
    assert (alone.trigger.kind, alone.rank) == ("loss", 1)
    assert "the loss is nan in step 9 on rank 1 of 2" in text_of(alone, answer_of)
    found = trace_back(("python",), watched, (ProcessNumerics("instrument", rank=0), seen(1, OVERFLOW)))
    assert found.trigger is not None
    assert (found.trigger.kind, found.rank, found.origin) == ("loss", 1, OVERFLOW)
    earlier = trace_back(("python",), (replace(GRADIENT, trigger=Trigger("gradient", 8, "nan")), watched[1]))
    assert earlier.trigger is not None
    assert (earlier.trigger.kind, earlier.trigger.step, earlier.rank) == ("gradient", 8, 0)


def test_the_sign_is_that_of_the_rank_that_is_named() -> None:
    """Rank 0 has seen the gradient that both share, and only rank 1 has seen its own loss in the second run."""
    loss = ProcessNumerics("instrument", rank=1, trigger=Trigger("loss", 9, "nan"), origin=OVERFLOW)
    found = trace_back(("python",), (GRADIENT,), (loss,))
    assert found.trigger is not None
    assert (found.trigger.kind, found.rank) == ("loss", 1)
    assert "its loss is finite" not in text_of(replace(found, ranks=2), answer_of)


def test_no_rank_is_named_for_a_gradient_that_all_have() -> None:
    found = trace_back(("python",), (GRADIENT, replace(GRADIENT, rank=1)))
    assert found.rank is None
    assert " on rank " not in text_of(found, answer_of)


def test_within_a_step_what_was_born_in_a_forward_precedes_what_was_in_a_backward() -> None:
    backward = replace(OVERFLOW, phase="backward", operator="aten::div")
    found = trace_back(("python",), (GRADIENT,), (seen(0, backward), seen(1, OVERFLOW)))
    assert (found.rank, found.origin) == (1, OVERFLOW)


def test_what_came_from_a_rank_that_left_no_account_is_laid_to_whoever_saw_it_first() -> None:
    received = replace(OVERFLOW, kind="collective", operator="")
    found = trace_back(("python",), (GRADIENT, replace(WATCHED, rank=1)), (seen(0, received),))
    assert found.trigger is not None
    assert (found.trigger.kind, found.rank) == ("loss", 1)
    assert found.cause is not None
    assert found.cause.name == "other-rank"


def test_an_overflow_after_great_growth_is_an_exploding_gradient_and_without_it_is_none() -> None:
    grown = trace_back(("python",), (WATCHED,), (seen(0, OVERFLOW),))
    assert grown.cause is not None
    assert grown.cause.name == "exploding-gradient"
    steady = replace(WATCHED, history=tuple((step, 1.0, 1.0 + step / 10) for step in range(1, 9)))
    plain = trace_back(("python",), (steady,), (seen(0, OVERFLOW),))
    assert plain.cause is not None
    assert plain.cause.name == "overflow"


def test_growth_leaves_out_what_is_not_finite() -> None:
    growth = growth_of(((1, 1.0, 2.0), (2, 1.0, None), (3, 1.0, 500.0), (4, "nan", "nan")))
    assert growth == ((1, 2.0), (3, 500.0), (4, "nan"))
    assert growth_factor(growth) == 250.0
    assert growth_factor(()) == 1.0


def finite(norms: list[float]) -> ProcessNumerics:
    """A run in which all stayed finite."""
    spread = tuple((10 * place + 1, 1.0, norm) for place, norm in enumerate(norms))
    return ProcessNumerics("watch", steps=10 * len(norms), spread=spread)


def test_a_run_that_stays_finite_and_diverges_is_reported_so() -> None:
    account = trace_back(("python", "train.py"), (finite([1.5**place for place in range(30)]),))
    assert account.diverging > 1000
    assert (account.growth[0], account.growth[-1][0], len(account.growth)) == ((1, 1.0), 291, 8)
    text = text_of(account, answer_of)
    assert text.startswith("The gradients grew by a factor")
    assert "All losses were finite in 300 steps." in text
    assert "the training diverges" in text
    assert "Clip the gradient" in text
    assert "Next:  change that, then: steptime nan -- python train.py" in text


@pytest.mark.parametrize(
    "norms",
    [[], [1.0] * 30, [1.0, 500.0], [0.0] * 10 + [9.0] * 20, [50.0, 1.0, 1.0, 0.5, 0.5, 2.0, 1.0, 99.0, 3.0]],
    ids=["none", "steady", "two", "from nothing", "one batch"],
)
def test_a_run_that_goes_well_is_not_reported_to_diverge(norms: list[float]) -> None:
    account = trace_back(("python", "train.py"), (finite(norms),))
    assert account.diverging == 1
    assert "diverges" not in text_of(account, answer_of)
    assert "Next:  steptime run -- python train.py" in text_of(account, answer_of)


def test_the_step_is_the_earlier_of_what_both_runs_have_seen() -> None:
    account = trace_back(("python",), (WATCHED,), (seen(0, OVERFLOW, step=8),))
    assert account.trigger is not None
    assert (account.trigger.kind, account.trigger.step) == ("gradient", 8)


def test_what_did_not_come_back_is_reported_with_the_next_command() -> None:
    text = text_of(trace_back(("python", "train.py"), (WATCHED,)), answer_of)
    assert "the loss is nan in step 9" in text
    assert "Origin" not in text
    assert text.splitlines()[-1] == "Next:  steptime nan --at 9 --max-steps 50 -- python train.py"


def test_an_account_tells_paths_from_the_jobs_folder() -> None:
    births = replace(OVERFLOW, inputs=OVERFLOW.inputs * 9, became_nan=OVERFLOW, samples=tuple(range(8)))
    account = trace_back(("python", "x" * 200), (WATCHED,), (seen(0, births),))
    lines = text_of(replace(account, directory="/home/ada/job", notes=("a note",) * 9), answer_of).splitlines()
    assert not any(line.endswith("…") for line in lines)
    assert lines[-1].endswith("x" * 200), "a command to paste is never cut"
    assert any(line.strip() == "model.py:12, in forward" for line in lines)


def test_control_characters_of_strangers_do_not_reach_the_terminal() -> None:
    site = SourceLine("/job/\x1b[2Jmodel.py", 3, "f", "x = '\x1b]0;gone\x07'")
    text = text_of(trace_back(("python",), (WATCHED,), (seen(0, replace(OVERFLOW, site=site)),)), answer_of)
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    for number, text in enumerate(('{"mode": "watch", "steps": 3}', "{", '{"mode": 7}', "[" * 100_000)):
        (tmp_path / f"process-{number}").mkdir()
        (tmp_path / f"process-{number}" / "numerics.json").write_text(text)
    (process,) = read_numerics(tmp_path)
    assert process.steps == 3


def test_paths_of_a_private_copy_are_reported_as_the_jobs_own(tmp_path: Path) -> None:
    (tmp_path / "process-1").mkdir()
    site = '{"file": "/runs/copy/model.py", "line": 3}'
    text = '{"mode": "instrument", "origin": {"site": ' + site + "}}"
    (tmp_path / "process-1" / "numerics.json").write_text(text)
    (process,) = read_numerics(tmp_path, (Path("/runs/copy"), Path("/home/ada")))
    assert process.origin is not None
    assert process.origin.site is not None
    assert process.origin.site.file == "/home/ada/model.py"


EARLY = replace(OVERFLOW, step=1)
SIZES = (("Net.0", 1.1), ("Net.1", 40.0), ("Net.2", 8e4))


def cause(origin: NonFiniteOrigin, **monitored: object) -> str:
    found = cause_of(origin, monitored=replace(WATCHED, **monitored))  # type: ignore[arg-type]
    return f"{found.name}: {found.sentence}"


def test_outputs_that_are_huge_before_anything_is_learnt_blame_the_initialisation() -> None:
    text = cause(EARLY, sizes=SIZES)
    assert text.startswith("initialisation: In the first step, ")
    assert "the outputs of Net.2 are 8e+04 in size (root mean square), those of Net.0 1.1" in text
    assert not cause(EARLY, sizes=(("Net.0", 1.1), ("Net.2", 3.0))).startswith("initialisation")
    assert not cause(OVERFLOW, sizes=SIZES).startswith("initialisation"), "eight steps were well before"


def test_updates_that_move_weights_by_their_own_size_blame_the_learning_rate() -> None:
    text = cause(OVERFLOW, updates=((4, "Net.0.weight", 0.2), (8, "Net.2.weight", 3.5), (9, "Net.0.weight", "nan")))
    assert text.startswith(
        "learning-rate: The update of step 8 was 3.5 times as large as the weight Net.2.weight, after "
    )
    assert "0.2 in step 4" in text
    grown = ((4, "a", 0.01), (8, "a", 300.0))
    assert cause(OVERFLOW, updates=grown).startswith("overflow"), "the gradients grew, not the learning rate"
    assert not cause(OVERFLOW, updates=((4, "a", 1e-3), (8, "a", 2e-3))).startswith("learning-rate")
    assert not cause(OVERFLOW, updates=((12, "a", 9.0),)).startswith("learning-rate"), "it came later"
