"""What lines go through: containers that they read whole, functions that they call, and nothing of it that stays."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from steptime.probe import repeats  # noqa: E402
from steptime.probe.line_work import one_hot  # noqa: E402
from steptime.probe.repeats import RepeatObserver  # noqa: E402

COUNT = 60_000


@pytest.fixture(autouse=True)
def time_of_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks stand while others have the CPU: shares of a line's time are those of its work."""
    monkeypatch.setattr(repeats, "now", time.thread_time_ns)


class Words:
    def __init__(self) -> None:
        self.names = [str(number) for number in range(COUNT)]
        self.tree = {"rows": [[number] for number in range(3_000)]}
        self.folder = Path(os.__file__).parent

    def searched(self, step: int) -> bool:
        return str(-1 - step) in self.names

    def indexed(self, step: int) -> int:
        return sum(len(self.names[at]) for at in range(step, step + 4_000))

    def made_anew(self, step: int) -> int:
        self.fresh = list(range(COUNT))
        return sum(self.fresh) + step

    def given(self, rows: list[Any]) -> bool:
        return None in rows

    def copied(self, step: int) -> Any:
        found = copy.deepcopy(self.tree)
        return found, step

    def listed(self, step: int) -> list[str]:
        found = [each.name for each in self.folder.glob("*.py")]
        return found[step:]


def observed(run: Callable[[int], Any], *codes: Any) -> list[dict[str, Any]]:
    observer = RepeatObserver({*codes} or {run.__code__}, 10**10)
    assert observer.start(sys._getframe())
    try:
        for step in range(4):
            run(step)
            run(step + 10)
            observer.boundary()
    finally:
        observer.stop(sys._getframe())
    return observer.works


def read(works: list[dict[str, Any]]) -> set[tuple[str, str, int]]:
    return {(each["name"], each["kind"], each["entries"]) for work in works for each in work["read"]}


def test_a_container_that_is_searched_is_read_whole_and_one_that_is_indexed_is_not() -> None:
    words = Words()
    (work,) = observed(words.searched, Words.searched.__code__)
    assert read([work]) == {("self.names", "list", COUNT)}
    assert work["evaluations"] == 2
    assert work["duration"] > 3 * COUNT
    assert read(observed(words.indexed, Words.indexed.__code__)) == set()


def test_of_a_view_the_memory_is_known_that_it_lies_in(tmp_path: Path) -> None:
    whole = torch.randn(64, 1_000)
    torch.save(whole[3], tmp_path / "view")
    torch.save(whole[3].clone(), tmp_path / "clone")

    def loaded(name: str) -> list[tuple[int, int]]:
        def load(step: int) -> Any:
            row = torch.load(tmp_path / name)
            return row

        return [(work["held"], work["used"]) for work in observed(load) if "torch.load" in work["site"]["text"]]

    assert loaded("view") == [(64 * 4_000, 4_000)]
    assert loaded("clone") == [(4_000, 4_000)]


def test_what_is_made_or_given_anew_is_another_container() -> None:
    words = Words()
    assert read(observed(words.made_anew, Words.made_anew.__code__)) == set()

    def give(step: int) -> bool:
        return words.given(list(range(COUNT)))

    assert read(observed(give, Words.given.__code__, give.__code__)) == set()


def test_what_is_handed_on_belongs_to_the_line_that_goes_through_it() -> None:
    words = Words()

    def hand_on(step: int) -> bool:
        return words.given(words.names)

    works = observed(hand_on, Words.given.__code__, hand_on.__code__)
    assert [(each["site"]["text"], read([each])) for each in works] == [
        ("return None in rows", {("rows", "list", COUNT)})
    ]


def test_functions_of_the_library_are_timed_at_the_line_that_calls_them() -> None:
    words = Words()
    works = observed(words.copied, Words.copied.__code__)
    ((work, call),) = ((work, call) for work in works for call in work["calls"] if call["name"] == "copy.deepcopy")
    assert 0.2 * work["duration"] < call["duration"] <= work["duration"]
    names = {call["name"] for work in observed(words.listed, Words.listed.__code__) for call in work["calls"]}
    assert any(name.startswith("pathlib.") and name.endswith(".glob") for name in names)


def test_a_file_that_is_read_again_is_known_by_its_name_and_another_one_is_not(tmp_path: Path) -> None:
    for name in ("0.pt", "1.pt"):
        torch.save(torch.arange(64.0), tmp_path / name)

    def same(step: int) -> Any:
        return torch.load(tmp_path / "0.pt"), step

    def others(step: int) -> Any:
        return torch.load(tmp_path / f"{step % 2}.pt"), step

    for run, known in ((same, True), (others, False)):
        calls = [call for work in observed(run) for call in work["calls"] if call["name"] == "torch.serialization.load"]
        assert [call["one_file"] for call in calls] == [known]


def parsed(number: int) -> list[int]:
    return [number * each for each in range(3_000)]


def of_others(workers: int) -> Any:
    """Parses all rows, for one worker of so many."""
    at = 0
    while True:
        row = parsed(at)
        total = sum(row * 30)
        at += 1
        if at % workers:
            continue
        yield row, total


def take(rows: Any, _: int) -> Any:
    return [next(rows) for _ in range(8)]


def test_rows_that_are_bound_anew_before_anything_takes_them_are_dropped() -> None:
    for workers, least, most in ((4, 0.4, 1.0), (1, 0.0, 0.0)):
        works = observed(partial(take, of_others(workers)), of_others.__code__)
        lines = {work["site"]["text"]: work for work in works}
        for text in ("row = parsed(at)", "total = sum(row * 30)"):  # what only makes what is dropped, too
            assert least <= lines[text]["dropped"] / lines[text]["duration"] <= most, (text, workers)
            assert lines[text]["unread"] == pytest.approx(1 - 1 / workers, abs=0.05)


class Every(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def rows(self) -> Any:
        for number in range(100_000):
            yield parsed(number)

    def __iter__(self) -> Any:
        return itertools.islice(self.rows(), 0, None, 3)


def test_rows_that_something_drops_on_their_way_to_a_loader_are_counted() -> None:
    loader = iter(torch.utils.data.DataLoader(Every(), 4, collate_fn=len))
    works = observed(lambda _: next(loader), Every.rows.__code__)
    (made,) = (work for work in works if work["made"])
    assert made["site"]["text"] == "yield parsed(number)"
    assert 16 <= made["made"] <= 24  # of the 8 that two batches take, each third one: the first batch opens it
    assert made["taken"] > 0


class Samples(list[Any]):
    def __getitem__(self, at: Any) -> Any:
        return torch.full((8,), float(at)), at % 3


def mostly(items: list[Any]) -> Any:
    good = [row for row, label in items if label]
    return torch.stack(good), len(good)


def every(items: list[Any]) -> Any:
    return torch.stack([row for row, _ in items])


def halved(items: list[Any]) -> Any:
    return torch.stack([row for row, _ in items[:5]]), torch.stack([row for row, _ in items[5:]])


def packed(items: list[Any]) -> Any:
    return torch.cat([row for row, _ in items])[None]


@pytest.mark.parametrize(("collate", "kept"), [(mostly, 2 / 3), (every, 1.0), (halved, 1.0), (packed, 1.0)])
def test_items_that_are_no_rows_of_their_batch_are_left_out(collate: Any, kept: float) -> None:
    loader = iter(DataLoader(Samples(range(120)), 12, collate_fn=collate))
    works = observed(lambda _: next(loader), collate.__code__)
    assert min((work["kept"] for work in works), default=1.0) == pytest.approx(kept)


def test_arrays_of_double_precision_and_lists_of_arrays_are_known() -> None:
    numpy = pytest.importorskip("numpy")

    def doubles(step: int) -> Any:
        wave = numpy.linspace(0.0, step, 500_000)
        return wave.astype(numpy.float32)

    observer = RepeatObserver({doubles.__code__}, 10**10)
    assert observer.start(sys._getframe())
    for step in range(3):
        doubles(step)
        observer.boundary()
    observer.stop(sys._getframe())
    assert observer.single
    found = {work["site"]["text"]: work["double"] for work in observer.works}
    assert found == {"wave = numpy.linspace(0.0, step, 500_000)": True, "return wave.astype(numpy.float32)": False}

    rows = [numpy.ones((20, 20)) for _ in range(8)]

    def converted(rows: Any) -> Any:
        return torch.as_tensor(rows)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, that this is slow
        works = observed(lambda _: converted(rows), converted.__code__)
    assert read(works) == set(), "an argument may be another list each time"
    works = observed(lambda _: torch.as_tensor(rows))
    assert read(works) == {("rows", "arrays", 3_200)}


def test_a_generator_of_the_library_goes_on_without_us() -> None:
    words = Words()
    paths: Any = words.folder.rglob("*.py")

    def run(step: int) -> int:
        return len([next(paths).name for _ in range(200)]) + step

    observed(run)
    assert paths.gi_frame is None or paths.gi_frame.f_trace is None
    assert next(paths) is not None


def test_nothing_of_the_jobs_is_kept_alive() -> None:
    words = Words()
    before = sys.getrefcount(words.names)
    observed(words.searched, Words.searched.__code__)
    gc.collect()
    after = sys.getrefcount(words.names)
    assert after == before


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (torch.eye(64), (64, 64)),
        (torch.nn.functional.one_hot(torch.arange(40), 50).float(), (40, 50)),
        (torch.nn.functional.one_hot(torch.arange(40), 50).bfloat16(), (40, 50)),
        (torch.nn.functional.one_hot(torch.arange(40), 50).double().view(4, 10, 50), (4, 10, 50)),
        (torch.nn.functional.one_hot(torch.arange(40), 50), ()),
        (torch.zeros(40, 50), ()),
        (2 * torch.eye(64), ()),
        (torch.eye(64) + torch.eye(64).roll(1, 0), ()),
        (torch.eye(8), ()),
        (torch.eye(64)[0], ()),
        (torch.randn(64, 64), ()),
        ([1.0], ()),
    ],
)
def test_one_hot_vectors_are_known_by_their_single_one(value: Any, shape: tuple[int, ...]) -> None:
    assert one_hot(value) == shape


def test_numbers_of_double_precision_are_counted_with_the_time_that_is_the_lines_own() -> None:
    numpy = pytest.importorskip("numpy")

    def drawn(step: int) -> Any:
        noise = numpy.random.randn(50_000)
        return noise.astype(numpy.float32)

    (noise,) = [work for work in observed(drawn) if work["double"]]
    assert (noise["site"]["text"], noise["double"]) == ("noise = numpy.random.randn(50_000)", 1.0)
    assert 0 < noise["own"] <= noise["duration"]
