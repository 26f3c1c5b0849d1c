"""The norm of the gradients: what is sampled of it, and when nothing is."""

from __future__ import annotations

import itertools
import math
import struct
import time
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.journal import Kind  # noqa: E402
from steptime.probe import gradients  # noqa: E402
from steptime.probe.gradients import (  # noqa: E402
    GradientNorm,
    bits,
)
from steptime.probe.recorder import Recorder  # noqa: E402


def never(reason: str) -> None:
    """The recording cannot be written."""
    raise AssertionError(reason)


def sampled(*parameters: Any) -> list[float]:
    """What one look leaves in the journal."""
    recorder = Recorder(never)
    GradientNorm(recorder, lambda: iter(parameters)).look()
    words = recorder.journal.records
    kinds = [word & 0xFF for word in words[::3]]
    return [from_bits(end) for kind, end in zip(kinds, words[2::3], strict=True) if kind == Kind.GRADIENT_NORM]


def from_bits(word: int) -> float:
    """As a reader of the recording understands a sample."""
    return float(struct.unpack("<f", struct.pack("<i", word))[0])


def parameter(values: list[float], dtype: Any = torch.float32) -> Any:
    """A parameter with a gradient."""
    found = torch.nn.Parameter(torch.zeros(len(values), dtype=dtype))
    found.grad = torch.tensor(values, dtype=dtype)
    return found


def test_the_norm_is_that_of_all_gradients_together() -> None:
    assert sampled(parameter([3.0, 4.0]), parameter([12.0], torch.bfloat16)) == [13.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_written_as_infinity(bad: float) -> None:
    assert sampled(parameter([1.0, bad]), parameter([1.0])) == [math.inf]


@pytest.mark.parametrize("norm", [0.0, 1e-40, 0.1, 2.5, 3.4e38, math.inf])
def test_a_norm_is_kept_to_seven_digits_and_never_looks_like_a_time(norm: float) -> None:
    assert 0 <= bits(norm) < 2**31
    assert from_bits(bits(norm)) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("norm", [3.5e38, 1e300, -1.0])
def test_what_a_float_cannot_hold_is_infinite(norm: float) -> None:
    assert from_bits(bits(norm)) == math.inf


def test_gradients_that_cannot_be_read_cheaply_are_passed_over() -> None:
    without, sparse = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    sparse.grad = torch.zeros(2).to_sparse()
    assert sampled(without, sparse, parameter([9.0], torch.float16)) == []
    assert sampled(without, sparse, parameter([9.0])) == [9.0]


def test_parameters_that_are_not_made_yet_are_passed_over() -> None:
    assert sampled(torch.nn.LazyLinear(2).weight, parameter([9.0])) == [9.0]


def test_nothing_is_asked_of_the_jobs_own_classes() -> None:
    asked: list[str] = []

    class Own(torch.nn.Parameter):  # type: ignore[misc,name-defined]
        @property
        def device(self) -> Any:
            asked.append("device")

        @property
        def is_leaf(self) -> Any:
            asked.append("is_leaf")

        def numel(self) -> Any:
            asked.append("numel")

        @property
        def grad(self) -> Any:
            asked.append("grad")

    own = Own(torch.zeros(2))
    torch._C.TensorBase.grad.__set__(own, torch.tensor([3.0, 4.0]))
    assert sampled(own) == [5.0]
    assert asked == []


@pytest.mark.filterwarnings("error")
def test_a_tensor_that_is_no_leaf_is_not_asked_for_a_gradient() -> None:
    assert sampled(parameter([1.0]) * 2, parameter([9.0])) == [9.0]


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, TypeError])
def test_tensors_that_know_no_norm_are_asked_once(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    asked = []

    def unknown(gradients: list[Any]) -> None:
        asked.append(gradients)
        raise error("not implemented")

    monkeypatch.setattr(torch, "_foreach_norm", unknown)
    monkeypatch.setattr(gradients, "REST", 0)
    recorder = Recorder(never)
    trained = [parameter([3.0])]
    norm = GradientNorm(recorder, lambda: iter(trained))
    norm.look()
    norm.look()
    assert (len(asked), len(recorder.journal.records)) == (1, 0)


def test_of_large_models_only_the_small_parameters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "MOST_ELEMENTS", 3)
    assert sampled(parameter([9.0] * 4), parameter([3.0]), parameter([4.0])) == [5.0]


def test_the_users_profiler_and_modes_see_nothing_of_it() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert sampled(parameter([3.0])) == []
    with FlopCounterMode(display=False):
        assert sampled(parameter([3.0])) == []


def test_the_next_look_waits_thousands_of_times_as_long_as_one_takes() -> None:
    recorder = Recorder(never)
    trained = [parameter([3.0])]
    norm = GradientNorm(recorder, lambda: iter(trained))
    for _ in range(gradients.SPAN):
        norm.look()
    known = len(recorder.journal.records)
    norm.look()
    assert len(recorder.journal.records) == known > 0


def test_a_model_that_is_gone_is_not_held() -> None:
    alone = [parameter([3.0])]
    norm = GradientNorm(Recorder(never), lambda: iter(alone))
    norm.look()
    reference = weakref.ref(alone.pop())
    assert reference() is None


def looks(monkeypatch: pytest.MonkeyPatch, each: list[tuple[float | None, int]]) -> list[int]:
    """What lies between looks at boundaries of steps of 10 ms, in ns; each reads what is given, and takes so many
    ns."""
    clock = [0]
    starts: list[int] = []
    weight = parameter([1.0])

    def norm(watched: Any) -> float | None:
        watched._chosen = [weakref.ref(weight)]
        found, taken = each[len(starts)]
        starts.append(clock[0])
        clock[0] += taken
        return found

    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock[0])
    monkeypatch.setattr(GradientNorm, "_norm", norm)
    watched = GradientNorm(Recorder(never), lambda: iter([weight]))
    while len(starts) < len(each):
        clock[0] += 10_000_000
        watched.look()
    return [later - earlier for earlier, later in itertools.pairwise(starts)]


USUAL, INTERRUPTED, NOTHING = (1.0, 100_000), (1.0, 20_000_000), (None, 2_000)


def test_looks_that_the_machine_interrupts_do_not_put_the_next_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = looks(monkeypatch, [INTERRUPTED, USUAL, USUAL, USUAL, INTERRUPTED, USUAL, USUAL])
    assert all(rest < 40_000_000 for rest in rests[:2]), "the first three come in steps one after the other"
    assert all(500_000_000 <= rest < 540_000_000 for rest in rests[2:]), rests


def test_looks_at_steps_without_gradients_do_not_bring_the_others_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = looks(monkeypatch, [USUAL] * 3 + [NOTHING, USUAL, NOTHING, NOTHING, USUAL, USUAL])
    assert [rest for rest in rests[2:] if 500_000_000 <= rest < 540_000_000] == [rests[2], rests[4], rests[7]]


def test_choosing_parameters_before_there_are_gradients_does_not_put_the_first_look_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert looks(monkeypatch, [(None, 50_000_000), USUAL]) == [60_000_000]
