"""Lines whose results come again: which are found, which are not, and that nothing of it stays behind."""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe import repeats  # noqa: E402
from steptime.probe.repeats import RepeatObserver, fingerprint  # noqa: E402

SIZE = 200_000
"""Numbers, of which any computation takes more than LEAST_TIME."""


def table() -> Any:
    return torch.arange(float(SIZE)).cos()


def by_call(step: int) -> Any:
    found = table()
    return found.sum() + step


def in_line(step: int) -> Any:
    mask = torch.arange(float(SIZE)) > 7
    return mask.sum() + step


def of_two(step: int) -> Any:
    found = torch.arange(float(SIZE)).pow(step % 2 + 2)
    return found.sum()


def worked_on(step: int) -> Any:
    copy = torch.arange(float(SIZE))
    copy += step
    return copy.sum()


def worked_on_by_the_caller(step: int) -> Any:
    copy = table()
    copy.add_(step)
    return copy.sum()


def buffer(step: int) -> Any:
    found = torch.zeros(SIZE)
    return found.sum() + step


def drawn(step: int) -> Any:
    found = torch.randn(SIZE)
    return found.sum() + step


def of_the_step(step: int) -> Any:
    found = torch.arange(float(SIZE)) * step
    return found.sum()


WEIGHT = torch.ones(SIZE, requires_grad=True)


def weighted(step: int) -> Any:
    return torch.arange(float(SIZE)).cos() * (step + WEIGHT)


def scored_again(step: int) -> Any:
    found = weighted(step)
    with torch.no_grad():
        score = weighted(step)
    return found.sum() + score.sum()


def trained_after(step: int) -> Any:
    with torch.no_grad():
        score = weighted(step)
    found = weighted(step)
    return found.sum() + score.sum()


def numbers(step: int) -> Any:
    total = float(torch.arange(float(SIZE)).sum())
    return total + step


def watched(run: Callable[[int], Any], *codes: Any, steps: int = 4, calls: int = 2) -> list[dict[str, Any]]:
    observer = RepeatObserver({run.__code__, *codes}, 10**10)
    assert observer.start(sys._getframe())
    try:
        for step in range(steps):
            for call in range(calls):
                run(step * calls + call)
            observer.boundary()
    finally:
        found = observer.stop(sys._getframe())
    assert sys.gettrace() is None
    return found


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["site"]["text"].partition(" =")[0] for each in found]


def test_the_function_that_computes_is_named_below_the_line_that_calls_it() -> None:
    caller, inner = watched(by_call, table.__code__)
    assert (caller["site"]["text"], inner["site"]["text"]) == (
        "found = table()",
        "return torch.arange(float(SIZE)).cos()",
    )
    assert inner["outer"] == caller["site"]
    assert inner["depth"] == caller["depth"] + 1
    assert (caller["evaluations"], caller["again"], caller["results"]) == (2.0, 2.0, 1)
    assert caller["duration"] >= inner["duration"] > 0


def test_what_a_line_binds_counts_as_what_a_function_returns() -> None:
    assert names(watched(in_line)) == ["mask"]


WEIGHT = torch.ones(SIZE, requires_grad=True)


def trained(step: int) -> Any:
    keys = [WEIGHT.cos() * torch.arange(float(SIZE))]
    return keys[0].sum().detach() + step


def test_what_comes_again_with_a_graph_is_told_apart() -> None:
    (found,) = watched(trained)
    assert found["with_graph"] == found["duration"] > 0
    assert watched(in_line)[0]["with_graph"] == 0


@pytest.mark.parametrize("result", [lambda found: Spread(found, 2), lambda found: OrderedDict(scores=found)])
def test_a_graph_is_seen_in_what_holds_a_result(result: Callable[[Any], Any]) -> None:
    def trained_after(step: int) -> Any:
        with torch.no_grad():
            score = result(weighted(step))
        found = result(weighted(step))
        return score, found

    assert watched(trained_after) == []


def test_several_results_that_come_in_turns_are_counted() -> None:
    (found,) = watched(of_two)
    assert (found["results"], found["again"]) == (2, 2.0)


@pytest.mark.parametrize(
    "run", [worked_on, worked_on_by_the_caller, buffer, drawn, of_the_step, numbers], ids=lambda run: run.__name__
)
def test_what_must_be_made_anew_is_not_found(run: Callable[[int], Any]) -> None:
    assert watched(run, table.__code__) == []


def test_a_copy_in_a_loop_that_runs_already_is_seen_to_be_worked_on() -> None:
    def loop() -> list[dict[str, Any]]:
        observer = RepeatObserver({sys._getframe().f_code}, 10**10)
        assert observer.start(sys._getframe())
        for step in range(6):
            copy = torch.arange(float(SIZE))
            copy.add_(step)
            kept = torch.arange(float(SIZE)).sin()
            del kept
            observer.boundary()
        return observer.stop(sys._getframe())

    assert "copy" not in names(loop())


def test_once_is_not_again() -> None:
    assert watched(in_line, steps=1) == []


def test_results_do_not_outlive_their_steps() -> None:
    kept: list[weakref.ref[Any]] = []

    def run(step: int) -> None:
        found = table()
        kept.append(weakref.ref(found))

    assert watched(run, table.__code__)
    assert [reference() for reference in kept] == [None] * len(kept)


def test_another_tracer_is_left_alone() -> None:
    sys.settrace(lambda *_: None)
    try:
        assert not RepeatObserver({table.__code__}, 10**10).start(sys._getframe())
    finally:
        sys.settrace(None)


def test_a_watch_that_costs_too_much_ends() -> None:
    observer = RepeatObserver({by_call.__code__, table.__code__}, 0)
    assert observer.start(sys._getframe())
    by_call(1)
    assert sys.gettrace() is None
    assert observer.stop(sys._getframe()) == []


@pytest.mark.parametrize(
    "value",
    [
        None, 3, [1, 2], torch.zeros(64), torch.arange(4.0), torch.arange(64.0).to("meta"), object(),
        (torch.arange(64.0), object()), torch.arange(64.0).to_sparse(),
    ],
    ids=["none", "number", "list", "zeros", "few", "meta", "object", "with an object", "sparse"],
)  # fmt: skip
def test_what_says_nothing_has_no_fingerprint(value: Any) -> None:
    assert fingerprint(value) is None


def test_a_fingerprint_is_of_the_numbers_and_their_form() -> None:
    first = torch.arange(64.0)
    assert fingerprint(first) == fingerprint(first.clone()) is not None
    assert fingerprint(first) == fingerprint(torch.nn.Parameter(first))
    others = [first + 1, first.reshape(8, 8), first.double(), first.numpy(), [first], {"x": first}]
    assert len({fingerprint(first), *map(fingerprint, others)}) == 1 + len(others)
    large = torch.arange(float(repeats.WHOLE))
    assert fingerprint(large) == fingerprint(large.clone())
    assert fingerprint(large) != fingerprint(large + 1)


def test_a_fingerprint_leaves_a_tensor_as_it_is() -> None:
    tensor = torch.arange(64.0)
    version = tensor._version
    assert fingerprint(tensor) is not None
    tensor.resize_(128)  # refused of a storage that NumPy has looked at
    assert tensor._version >= version
    batched = torch.vmap(lambda row: (fingerprint(row), row)[1])(torch.randn(4, 64))
    assert batched.shape == (4, 64)


def asked_twice(step: int) -> Any:
    first = of_call(step)
    second = of_call(step)
    return first.sum() + second.sum()


def of_call(step: int) -> Any:
    return torch.arange(float(SIZE)).pow(step % 7 + 2)


def test_of_two_lines_that_ask_for_the_same_both_are_named() -> None:
    found = watched(asked_twice, of_call.__code__, calls=1)
    (inner,) = [each for each in found if each["site"]["text"].startswith("return")]
    assert inner["first"]["text"] == "first = of_call(step)"
    assert inner["asker"]["text"] == "second = of_call(step)"


def one_step(observer: RepeatObserver, step: int) -> None:
    if not step:
        assert observer.start(sys._getframe(1))
    found = of_call(0)
    assert found is not None
    observer.boundary()


def loop_of_steps(observer: RepeatObserver) -> None:
    for step in range(4):
        one_step(observer, step)


def test_who_calls_is_known_where_the_observer_starts_in_a_function_of_the_loop() -> None:
    observer = RepeatObserver({each.__code__ for each in (one_step, loop_of_steps, of_call)}, 10**10)
    try:
        loop_of_steps(observer)
    finally:
        found = observer.stop(sys._getframe())
    (inner,) = [each for each in found if each["site"]["text"].startswith("return")]
    assert inner["outer"]["text"] == "found = of_call(0)"


def test_a_result_without_gradients_is_none_for_backward_to_go_through() -> None:
    assert watched(trained_after, weighted.__code__, calls=1) == []
    assert watched(scored_again, weighted.__code__, calls=1)


def test_a_line_that_computes_the_same_by_itself_has_no_other() -> None:
    found = watched(by_call, table.__code__)
    assert [each["asker"] for each in found] == [None, None]


@dataclass
class Spread:
    mean: Any
    width: Any


class Trainer:
    def __init__(self, mean: Any) -> None:
        self.mean = mean


def test_an_object_that_is_made_for_its_arrays_is_what_they_are() -> None:
    mean = torch.arange(20.0)
    normal = torch.distributions.Normal(mean, 1.0)
    assert fingerprint(normal) == fingerprint(torch.distributions.Normal(mean.clone(), 1.0)) != None  # noqa: E711
    assert fingerprint(normal) != fingerprint(torch.distributions.Normal(mean + 1, 1.0))
    assert fingerprint(Spread(mean, 2)) == fingerprint(Spread(mean.clone(), 2)) is not None
    assert fingerprint(Spread(mean, 2)) != fingerprint(Spread(mean, 3))
    assert fingerprint(Spread(mean, lambda: 2)) is None
    assert fingerprint(torch.nn.Linear(20, 20)) is None
    assert fingerprint(Trainer(mean)) is None


def test_a_view_is_what_its_memory_is_seen_as() -> None:
    rows = torch.arange(64.0).reshape(8, 8)
    assert fingerprint(rows.t()) == fingerprint(rows.clone().t()) is not None
    assert len({fingerprint(each) for each in (rows, rows.t(), rows[:, 1:], rows[:1].expand(8, 8))}) == 4
