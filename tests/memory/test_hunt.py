"""Who keeps what steps leave behind: planted leaks of each kind, and what only looks like one."""

from __future__ import annotations

import gc
import itertools
import queue
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, TensorDataset  # noqa: E402

from steptime.probe.memory import living  # noqa: E402
from steptime.probe.memory.exhausted import held, understood  # noqa: E402
from steptime.probe.memory.leaks import (  # noqa: E402
    APART,
    LOOKS,
    LeakSearch,
)
from steptime.probe.memory.living import Graphs  # noqa: E402

KEPT: list[Any] = []
FIRST = 3


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> None:
    """The garbage collector does not say who refers to a frozen object."""
    gc.unfreeze()


class Meter:
    def __init__(self) -> None:
        self.history: list[Any] = []

    def update(self, value: Any) -> None:
        self.history.append((1, value))


def report_of(batch: Any) -> Callable[[], Any]:
    def report() -> Any:
        return batch.mean()

    return report


def hunted(step_of_job: Callable[[int], None]) -> list[dict[str, Any]]:
    """What the hunt finds in a job of its own loop."""
    hunt = LeakSearch()
    for step in range(FIRST + 2 * APART * LOOKS):
        step_of_job(step)
        if step >= FIRST and (step - FIRST) % APART == 0:
            hunt.look(step, sys._getframe())
            if hunt.done:
                return hunt.leaks
    raise AssertionError("the hunt did not end")


def loss() -> Any:
    weight = torch.ones(8, requires_grad=True)
    return (weight * torch.randn(8)).sum()


def text_of(leak: dict[str, Any]) -> str:
    return str(leak["site"]["text"]) if leak["site"] else ""


class Trainer:
    def __init__(self) -> None:
        self.total = torch.zeros(())

    def step(self, number: int) -> None:
        self.total += loss()
        if number % 3 == 0:
            gc.collect(1)  # what lived becomes old, and the old of all other tests is not searched


@pytest.mark.parametrize("most", [living.MOST_NODES, 30])
def test_a_sum_in_an_attribute_that_is_added_to_in_place_is_named_however_old_it_is(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(living, "MOST_NODES", most)
    trainer = Trainer()
    (leak,) = hunted(lambda step: trainer.step(step))
    assert (leak["kind"], leak["name"]) == ("attribute", "Trainer.total")
    assert text_of(leak) == "self.total += loss()"
    assert leak["nodes"] > 1


class Count:
    def __init__(self) -> None:
        self.total = torch.zeros(())


def test_a_sum_that_the_loop_itself_adds_to_has_the_loops_line() -> None:
    count, hunt = Count(), LeakSearch()
    for step in range(APART * LOOKS):
        count.total += loss()
        if step % APART == 0:
            hunt.look(step, sys._getframe())
    (leak,) = hunt.leaks
    assert (leak["name"], text_of(leak)) == ("Count.total", "count.total += loss()")


def test_a_list_of_a_module_is_named_with_its_line() -> None:
    KEPT.clear()
    (leak,) = hunted(lambda step: KEPT.append(loss()))
    KEPT.clear()
    assert (leak["kind"], leak["name"], leak["graphs"]) == ("list", "KEPT", 1.0)
    assert "KEPT.append(" in text_of(leak)


def test_a_list_of_a_running_function_is_named_with_its_line() -> None:
    def train() -> list[dict[str, Any]]:  # by itself: pytest makes a function with an assertion read its locals
        rows: list[Any] = []
        return hunted(lambda step: rows.append({"step": step, "loss": loss().detach()}))

    (leak,) = train()
    assert (leak["kind"], leak["name"], leak["graphs"]) == ("list", "rows", 0.0)
    assert "rows.append(" in text_of(leak)


def test_a_running_sum_is_a_graph_that_grows() -> None:
    total: Any = torch.zeros(())

    def step_of_job(step: int) -> None:
        nonlocal total
        total = total + loss()

    (leak,) = hunted(step_of_job)
    assert leak["name"] == "total"
    assert leak["nodes"] >= 2
    assert "total = total + loss()" in text_of(leak)


def test_a_graph_that_is_longer_each_time_and_holds_nothing_of_earlier_steps_is_no_leak() -> None:
    episode: Any = None

    def step_of_job(step: int) -> None:
        nonlocal episode
        episode = sum(loss() for _ in range(step + 1))

    assert hunted(step_of_job) == []


def test_an_attribute_is_named_with_its_class_and_the_line_that_grows_it() -> None:
    meter = Meter()
    (leak,) = hunted(lambda step: meter.update(loss()))
    assert (leak["kind"], leak["name"]) == ("attribute", "Meter.history")
    assert text_of(leak) == "self.history.append((1, value))"


def test_an_iterator_that_repeats_its_first_pass_is_named_as_what_keeps_it() -> None:
    def train() -> list[dict[str, Any]]:
        batches = itertools.cycle(torch.randn(8) for _ in range(100))
        return hunted(lambda step: next(batches))

    (leak,) = train()
    assert (leak["kind"], leak["name"]) == ("cycle", "batches")
    assert "itertools.cycle(" in text_of(leak)


def test_a_cache_of_tensors_is_named_by_its_function() -> None:
    def train() -> list[dict[str, Any]]:
        @cache
        def offsets(count: int) -> Any:
            return torch.arange(count)

        return hunted(lambda step: offsets(step))

    (leak,) = train()
    assert (leak["kind"], leak["name"]) == ("cache", "offsets")


def test_what_an_object_of_a_library_keeps_is_named_with_the_line_that_makes_such_objects() -> None:
    def train() -> list[dict[str, Any]]:
        data: Any = [torch.zeros(1)]

        def step_of_job(step: int) -> None:
            nonlocal data
            data = ConcatDataset([data, TensorDataset(torch.randn(4), torch.randn(4))])

        return hunted(step_of_job)

    (leak,) = train()
    assert (leak["kind"], leak["name"]) == ("attribute", "ConcatDataset.datasets")
    assert text_of(leak) == "data = ConcatDataset([data, TensorDataset(torch.randn(4), torch.randn(4))])"


def test_an_attribute_is_named_where_its_object_has_a_dictionary_of_its_own() -> None:
    meter = Meter()
    assert vars(meter)  # from now on the dictionary refers to the list, and the object to the dictionary
    (leak,) = hunted(lambda step: meter.update(loss()))
    assert (leak["kind"], leak["name"]) == ("attribute", "Meter.history")


def test_a_closure_is_named_by_what_it_keeps() -> None:
    callbacks: list[Any] = []
    (leak,) = hunted(lambda step: callbacks.append(report_of(torch.randn(64))))
    assert (leak["kind"], leak["name"], leak["bytes"]) == ("closure", "batch", 256.0)


def test_a_hook_that_keeps_outputs_is_a_hook() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    seen: list[Any] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        seen.append(output)

    handle = model[0].register_forward_hook(keep)
    (leak,) = hunted(lambda step: model(torch.randn(2, 4)))
    handle.remove()
    assert (leak["kind"], leak["name"]) == ("hook", "seen")
    assert text_of(leak) == "seen.append(output)"


@pytest.mark.parametrize("generation", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_the_collector_makes_old_within_a_step_is_found_all_the_same(generation: int) -> None:
    rows: list[Any] = []

    def step_of_job(step: int) -> None:
        rows.append(loss())
        gc.collect(generation)

    (leak,) = hunted(step_of_job)
    assert leak["name"] == "rows"


def test_a_graph_counts_what_it_shares_with_another_once_and_leaves_join_none() -> None:
    graphs, weight = Graphs(), torch.ones(8, requires_grad=True)
    one, other = (weight * 2).sum(), (weight * 3).sum()
    total = one + 1
    assert [graphs.behind(each) for each in (one, other, total, one)] == [3, 2, 4, 3]


def test_graphs_that_steps_leave_behind_are_walked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(living, "MOST_NODES", 10)
    graphs = Graphs()
    assert sum(graphs.behind(loss()) for _ in range(20)) == 10


def test_batches_that_wait_in_a_queue_are_no_leak() -> None:
    waiting: queue.Queue[Any] = queue.Queue()
    assert hunted(lambda step: waiting.put((step, torch.randn(64)))) == []


def test_a_healthy_loop_keeps_nothing() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    running = torch.zeros(())
    last: list[Any] = []

    def step_of_job(step: int) -> None:
        nonlocal running
        result = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        result.backward()
        optimizer.step()
        running = running + result.detach()
        last.append(result)
        if len(last) > 2:
            last.pop(0)

    assert hunted(step_of_job) == []


def test_the_hunt_calls_nothing_of_the_users_and_keeps_nothing_alive() -> None:
    class Touchy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("asked")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

    touchy = [Touchy(), [Touchy()]]
    batches: list[Any] = []

    def step_of_job(step: int) -> None:
        batches.append(torch.randn(4))
        del batches[:-1]

    assert hunted(step_of_job) == []
    assert touchy


def test_what_a_job_knows_of_its_own_variables_stays_as_it_was() -> None:
    """Up to Python 3.12 a frame has one dictionary of locals, which it hands to everybody."""

    def train(rate: float = 0.1) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        settings = locals()
        rows: list[Any] = []
        leaks = hunted(lambda step: rows.append(loss()))
        return settings, leaks

    settings, leaks = train()
    assert settings == {"rate": 0.1}
    assert len(leaks) == 1


def test_a_dictionary_of_locals_that_somebody_else_holds_is_not_emptied() -> None:
    taken: list[Any] = []

    def take() -> None:
        taken.append(sys._getframe(1).f_locals)

    def train() -> list[dict[str, Any]]:
        rows: list[Any] = []
        take()
        return hunted(lambda step: rows.append(loss()))

    (leak,) = train()
    assert leak["name"] == "rows"
    assert "rows" in taken[0]


def test_tensors_of_the_jobs_own_classes_are_not_asked() -> None:
    asked: list[str] = []

    class Own(torch.Tensor):  # type: ignore[misc,name-defined]
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(str(function))
            return super().__torch_function__(function, types, args, kwargs or {})

    rows: list[Any] = []
    (leak,) = hunted(lambda step: rows.append(torch.zeros(4).as_subclass(Own)))
    assert leak["bytes"] == 16.0
    assert held("cpu")["other tensors"] > 0
    assert asked == []


def test_lazy_objects_in_the_jobs_module_stay_unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise AssertionError("opened")

    monkeypatch.setitem(globals(), "LAZY", Lazy())
    KEPT.clear()
    (leak,) = hunted(lambda step: KEPT.append(loss()))
    KEPT.clear()
    assert leak["name"] == "KEPT"


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"),
            (4096, "cpu", None),
        ),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
                         "which 1.20 GiB is free."),
            (2 << 30, "cuda", int(79.15 * (1 << 30))),
        ),
        (MemoryError(), (None, "cpu", None)),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (KeyError("x"), None),
        (None, None),
    ],
)  # fmt: skip
def test_errors_that_say_that_memory_ran_out_are_understood(error: BaseException | None, found: Any) -> None:
    assert understood(error) == found
