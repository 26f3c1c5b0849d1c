"""Times of lines below the loop: which line has them, by which path, and that nothing of it stays behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset

from steptime.probe import sampling
from steptime.probe.sampling import LONG_CALL, MOST_HITS, LineSampler


@pytest.fixture(autouse=True)
def time_of_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks stand while others have the CPU: a few timed calls stand for many, and would multiply such a pause."""
    monkeypatch.setattr(sampling, "now", time.thread_time_ns)


def busy(rounds: int) -> int:
    return sum(range(rounds))


def window(length: int) -> int:
    total = 0
    for each in range(length):
        total += each * each
    return total


def once() -> int:
    cheap = busy(10)
    return cheap + busy(200_000)


def often(calls: int, rounds: int) -> int:
    total = 0
    for _ in range(calls):
        total += busy(rounds)
    return total


def sampled(run: Callable[[], object]) -> list[dict[str, Any]]:
    sampler = LineSampler()
    assert sampler.start()
    try:
        run()
    finally:
        found = sampler.stop(1)
    assert sys.gettrace() is None
    assert found["steps"] == 1
    paths: list[dict[str, Any]] = found["paths"]
    return paths


def names(path: dict[str, Any]) -> list[str]:
    return [line["function"].rpartition(".")[2] for line in path["lines"]]


def test_the_line_with_most_time_comes_first_with_the_path_that_leads_to_it() -> None:
    first = sampled(once)[0]
    assert names(first)[:2] == ["busy", "once"]
    assert first["lines"][0]["text"] == "return sum(range(rounds))"
    assert first["lines"][1]["text"] == "return cheap + busy(200_000)"
    assert first["part"] == ""


@pytest.mark.parametrize(("calls", "rounds"), [(3 * MOST_HITS, 5_000), (LONG_CALL // 10, 500_000)])
def test_a_function_that_is_called_often_keeps_its_time(calls: int, rounds: int) -> None:
    """Though only some of its calls are timed, and only the first lines of the loop around them."""
    paths = sampled(lambda: often(calls, rounds))
    own = sum(path["duration"] for path in paths if names(path)[0] == "busy")
    calling = sum(path["duration"] for path in paths if names(path)[0] == "often")
    assert own > calling


def test_how_often_a_line_ran_is_counted_and_of_a_long_call_estimated() -> None:
    def ran(length: int, calls: int) -> int:
        paths = sampled(lambda: [window(length) for _ in range(calls)])
        return max(int(path["ran"]) for path in paths if path["lines"][0]["text"] == "total += each * each")

    assert ran(LONG_CALL // 4, 3) == 3 * (LONG_CALL // 4)
    # The rest of a long call is estimated by its time, in which untraced rounds are several times as fast.
    assert ran(400 * LONG_CALL, 1) > 2 * LONG_CALL


def test_a_line_whose_calls_are_timed_now_and_then_has_no_time_of_theirs() -> None:
    """Each of its calls lasts long enough to halve how often the next ones are timed."""

    def item() -> int:
        return window(LONG_CALL + 12)

    paths = sampled(lambda: [item() for _ in range(64)])
    spent = {name: sum(path["duration"] for path in paths if names(path)[0] == name) for name in ("window", "item")}
    assert spent["item"] < spent["window"] / 4


def test_caller_and_callee_have_the_time_of_a_run_together_however_often_each_is_timed() -> None:
    def item() -> int:
        return window(LONG_CALL + 100) + busy(2_000)

    def epoch() -> None:
        for _ in range(MOST_HITS):
            item()

    start = time.thread_time_ns()
    paths = sampled(epoch)
    took = time.thread_time_ns() - start
    assert sum(path["duration"] for path in paths) <= 1.2 * took


def test_what_runs_once_before_a_long_loop_is_not_taken_for_the_loop() -> None:
    def counting() -> int:
        total = sum(range(2_000_000))
        for each in range(40 * LONG_CALL):
            total += each
        return total

    start = time.thread_time_ns()
    sum(range(2_000_000))
    once_alone = time.thread_time_ns() - start
    paths = [path for path in sampled(counting) if names(path)[0] == "counting"]
    by_text = {path["lines"][0]["text"]: path["duration"] for path in paths}
    assert by_text["total = sum(range(2_000_000))"] < 10 * once_alone
    assert by_text["total += each"] > 0


def test_a_generator_has_the_time_in_which_it_runs() -> None:
    """Its frame lives on between two values, and is not called again by what is timed of it."""

    def values() -> Iterator[int]:
        for each in range(3 * MOST_HITS):
            yield 3 * each

    start = time.thread_time_ns()
    paths = sampled(lambda: sum(busy(200) for each in values() if each % 2))
    took = time.thread_time_ns() - start
    assert sum(path["duration"] for path in paths) <= 2 * took


def test_what_a_loader_runs_is_known_as_input() -> None:
    class Items(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return busy(50_000)

    paths = sampled(lambda: list(DataLoader(Items(), batch_size=2)))
    inside = next(path for path in paths if names(path)[:2] == ["busy", "__getitem__"])
    assert inside["part"] == "input"


def test_an_exception_passes_and_a_debugger_is_left_alone() -> None:
    def fails() -> None:
        busy(10)
        raise ValueError("mine")

    def run() -> None:
        with pytest.raises(ValueError, match="mine"):
            fails()
        once()

    assert names(sampled(run)[0])[:2] == ["busy", "once"]

    def debugger(*_: object) -> None:
        return None

    sys.settrace(debugger)
    try:
        assert not LineSampler().start()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)


def test_a_loop_that_runs_already_is_timed_from_its_next_line_on() -> None:
    sampler = LineSampler()
    assert sampler.start(sys._getframe())
    total = busy(10)
    total += busy(200_000)
    found = sampler.stop(1)["paths"]
    assert names(found[0])[0] == "busy"
    assert found[0]["lines"][1]["text"] == "total += busy(200_000)" or total < 0
    assert sys.gettrace() is None
    assert sys._getframe().f_trace is None


def test_the_time_of_lines_that_run_already_holds_no_call_twice() -> None:
    sampler = LineSampler()
    start = time.thread_time_ns()
    assert sampler.start(sys._getframe())
    often(20, 20_000)
    found = sampler.stop(1)["paths"]
    assert sum(path["duration"] for path in found) <= time.thread_time_ns() - start


def test_an_interrupt_while_it_measures_itself_leaves_no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        sys.settrace(sampler._trace)
        raise KeyboardInterrupt

    sampler = LineSampler()
    monkeypatch.setattr(sampler, "_timed_calls", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sampler.start()
    assert sys.gettrace() is None
