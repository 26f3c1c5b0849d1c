"""What the probe sees inside a DataLoader, in the trainer and in its workers; each job is run bare and watched."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from preloading import python

from steptime.journal import RECORD, SPAWNED, Kind
from steptime.probe.loader import MOST_LINED

INJECT = Path(__file__).resolve().parents[2] / "src" / "steptime" / "probe" / "inject"

JOB = """
import hashlib, os, pickle, random, sys, time, traceback
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)
mode = sys.argv[1]


items = 0


class Items(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        global items
        items += 1
        if mode.startswith("item-error") and items > 9:  # the third batch of a process: all workers have begun
            raise KeyError("no such item")
        return torch.full((4,), float(index)) + torch.rand(4), random.random()


class Held(Dataset):
    def __init__(self):
        self.x, self.y = torch.rand(48, 4), torch.rand(48)

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Embedded(Dataset):
    def __init__(self):
        self.net = nn.Linear(4, 4)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.net(torch.full((4,), float(index))).detach(), 0.5


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(20):
            yield torch.full((4,), float(index)), 0.5


calls = 0


def collate(items):
    global calls
    calls += 1
    if mode.startswith("collate-error") and calls > 2:  # torch takes a worker that ends before it has begun as killed
        raise ValueError("cannot collate")
    if mode.startswith(("lined2", "spawn")) and calls <= 6:  # of a worker, those whose lines are looked at
        time.sleep(0.06); sum(range(20_000))  # the hot line: waits longer than a busy machine holds another one
    return torch.stack([item[0] for item in items]), torch.tensor([item[1] for item in items])


def make():
    workers = int(mode[-1]) if mode[-1].isdigit() else 0
    if mode.startswith("stream"):
        return DataLoader(Stream(), batch_size=4, num_workers=workers)
    if mode.startswith("single"):
        return DataLoader(Items(), batch_size=None, num_workers=workers)
    if mode.startswith("held"):
        return DataLoader(Subset(Held(), range(40)), batch_size=4, num_workers=workers)
    if mode.startswith("embedded"):
        return DataLoader(Embedded(), batch_size=4, num_workers=workers)
    if mode.startswith("tensors"):
        return DataLoader(TensorDataset(torch.rand(40, 4), torch.rand(40)), batch_size=4)
    return DataLoader(
        Items(), batch_size=4, shuffle=True, num_workers=workers, collate_fn=collate,
        persistent_workers=mode.startswith("persistent"),
        multiprocessing_context="spawn" if mode.startswith("spawn") and len(sys.argv) == 2 else None,
    )


def main():
    digest = hashlib.sha256()
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = make()
    kept = [loader] if "anew" in mode else []
    digest.update(repr((sorted(vars(loader.dataset)), pickle.loads(pickle.dumps(loader.dataset))[3])).encode()
        if not mode.startswith(("stream", "item-error")) else b"")
    for epoch in range(60 if "persistent-long" in mode else 10 if "long" in mode else 2):
        loader = make() if kept else loader
        for x, y in loader:
            loss = (net(x).squeeze(-1) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            digest.update(repr((loss.item(), x.tolist())).encode())
    digest.update(repr((torch.rand(3).tolist(), random.random())).encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc(file=sys.stdout)
"""


class Seen:
    """A finished job: what it printed, the facts of its loaders and the records of its journals by kind."""

    def __init__(self, folder: Path, mode: str, watched: bool) -> None:
        script = folder / "job.py"
        script.write_text(JOB)
        recording = folder / f"recording-{mode}"
        recording.mkdir(exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if key != "STEPTIME_PROBE"}
        if watched:
            plan = {"recording": str(recording), "profile": False}
            environment |= {"STEPTIME_PROBE": json.dumps(plan), "PYTHONPATH": str(INJECT), "STEPTIME_DEBUG": "1"}
        environment["PRELOADED_SPAWNS_ARE_FORKS"] = "1"  # Pythons of their own are spawned in other tests
        words = [python(), str(script), mode, *([] if watched else ["bare"])]  # forked workers draw the same numbers
        done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        self.status, self.printed, self.errors = done.returncode, done.stdout, done.stderr
        self.loaders: list[dict[str, Any]] = []
        self.lined: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []
        self.repeats: list[dict[str, Any]] = []
        self.trainer: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self.workers: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        folders = list(recording.glob("process-*"))
        assert len(folders) <= int(watched), "a worker is no trainer"
        for process in folders:
            facts = [json.loads(line) for line in (process / "facts.jsonl").read_text().splitlines()]
            self.loaders = [fact for fact in facts if fact["fact"] == "loader"]
            self.lined = [fact for fact in facts if fact["fact"] == "worker_samples"]
            self.items = [fact for fact in facts if fact["fact"] == "items"]
            self.repeats = [fact for fact in facts if fact["fact"] == "repeats"]
            for name, records in (("journal.bin", self.trainer), ("loader.bin", self.workers)):
                path = process / name
                for record in RECORD.iter_unpack(path.read_bytes() if path.exists() else b""):
                    records[record[0]].append(record)


Both = Callable[[str], tuple[Seen, Seen]]


SLOW_MODES, MORE_ERRORS = (
    [pytest.param(each, marks=pytest.mark.slow) for each in modes]
    for modes in (("single2", "embedded2"), ("item-error0", "collate-error1"))
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """both(mode): the same job, bare and watched. It is run once for all that is asked of it."""

    @functools.cache
    def both(mode: str) -> tuple[Seen, Seen]:
        folder = tmp_path_factory.mktemp(mode)
        bare, watched = Seen(folder, mode, watched=False), Seen(folder, mode, watched=True)
        assert watched.status == bare.status == 0, watched.errors
        assert watched.printed == bare.printed
        assert own_errors(watched) == own_errors(bare)
        return bare, watched

    return both


def own_errors(seen: Seen) -> list[str]:
    """stderr without what multiprocessing's resource tracker says of its races with spawned workers, bare or not."""
    tracker = ("resource_tracker", "warnings.warn('resource_tracker")
    return [line for line in seen.errors.splitlines() if not any(word in line for word in tracker)]


def inside(child: tuple[int, ...], parents: list[tuple[int, ...]]) -> bool:
    return any(parent[4] <= child[4] <= child[5] <= parent[5] for parent in parents)


def test_without_workers_items_and_collate_lie_inside_of_next(both: Both) -> None:
    _, seen = both("plain0")
    fetches, collates = seen.trainer[Kind.FETCH], seen.trainer[Kind.COLLATE]
    assert 20 <= len(fetches) == len(collates) <= 24, "all of them until nobody waits for boundaries"
    for fetch, collate in zip(fetches, collates, strict=True):
        assert fetch[5] == collate[4]
        assert inside(fetch, seen.trainer[Kind.LOADER_NEXT])
        assert inside(collate, seen.trainer[Kind.LOADER_NEXT])
    assert {record[3] for record in fetches} == {loader["identity"] for loader in seen.loaders}
    assert len(seen.trainer[Kind.LOADER_START]) == 2
    assert not seen.workers
    loader = seen.loaders[0]
    assert loader["loader"] == seen.loaders[1]["loader"]
    assert (loader["dataset"], loader["dataset_length"], loader["batch_size"]) == ("Items", 48, 4)
    assert loader["collate"] == "__main__.collate"
    assert not loader["in_memory_tensors"]
    assert loader["site"]["function"] == "make"
    assert loader["item_site"]["text"].startswith("def __getitem__")


@pytest.mark.parametrize(("mode", "drawn"), [("plain0", True), ("fork2", True), ("held0", False), ("held2", False)])
def test_items_of_the_first_batches_are_looked_at(both: Both, mode: str, drawn: bool) -> None:
    _, seen = both(mode)
    assert {fact["iterator"] for fact in seen.items} == {loader["identity"] for loader in seen.loaders}
    for fact in seen.items:
        assert fact["batches"] == 2
        assert fact["drawn"] is drawn
        assert 16 < fact["bytes"] < 2000  # four numbers and one, as objects


@pytest.mark.parametrize("mode", ["fork2", "persistent2", "held2", "stream2", *SLOW_MODES])
def test_forked_workers_write_every_batch_alongside_the_trainers_journal(both: Both, mode: str) -> None:
    _, seen = both(mode)
    batches = {"fork2": 24, "persistent2": 24, "single2": 96, "held2": 20, "embedded2": 20, "stream2": 20}[mode]
    fetches, collates, waits = (seen.workers[kind] for kind in (Kind.FETCH, Kind.COLLATE, Kind.QUEUE))
    assert len(fetches) == len(collates) == batches
    assert {record[2] for record in fetches} == {0, 1}, "the worker's number"
    assert {record[3] for record in fetches} == {loader["identity"] for loader in seen.loaders}
    assert len(waits) == batches - (2 if mode == "persistent2" else 4), "all but each worker's first batch"
    assert all(record[4] <= record[5] for record in fetches + collates + waits)
    assert not seen.trainer[Kind.FETCH]
    assert len(seen.trainer[Kind.LOADER_START]) == 2, "persistent workers start anew in each epoch too, but faster"
    ready = [record[5] for record in seen.trainer[Kind.QUEUE]]
    assert 20 <= len(ready) <= len(seen.trainer[Kind.LOADER_NEXT]), "at all of them until nobody waits for boundaries"
    assert all(0 <= number <= 4 for number in ready)
    assert seen.loaders[0]["in_memory_tensors"] is (mode == "held2")
    assert seen.loaders[0]["iterable"] is (mode == "stream2")


@pytest.mark.slow
def test_a_further_epoch_of_persistent_workers_has_begun_when_its_first_batch_is_asked_for(both: Both) -> None:
    """Also while nobody waits for boundaries, and in turns without a watch: a start that goes on would be taken out of
    the steps that it seems to lie in."""
    _, seen = both("persistent-long2")
    starts, asked = seen.trainer[Kind.LOADER_START], seen.trainer[Kind.LOADER_NEXT]
    assert len(starts) > 20
    assert len(asked) > 300
    for start in starts:
        assert not [each for each in asked if start[4] < each[4] < start[5]]


def test_spawned_workers_find_the_trainers_folder_and_name_the_iterator_by_its_seed(both: Both) -> None:
    _, seen = both("spawn1")
    assert len(seen.workers[Kind.FETCH]) == len(seen.workers[Kind.COLLATE]) == 24
    identities = {record[3] for record in seen.workers[Kind.FETCH]}
    assert identities == {SPAWNED | loader["seed"] for loader in seen.loaders}


@pytest.mark.parametrize("mode", ["lined2", "spawn1"])
def test_the_first_worker_times_lines_of_a_few_batches_and_tells_the_hottest(both: Both, mode: str) -> None:
    _, seen = both(mode)
    assert 1 <= len(seen.lined) <= 2, "one worker of each epoch"
    assert {fact["iterator"] for fact in seen.lined} <= {record[3] for record in seen.workers[Kind.FETCH]}
    for fact in seen.lined:
        hottest = max(fact["paths"], key=lambda path: int(path["duration"]))
        assert "the hot line" in hottest["lines"][0]["text"]
        assert {path["part"] for path in fact["paths"]} == {"input"}
    looked = {fact["iterator"]: fact["works"] for fact in seen.repeats if fact.get("iterator") is not None}
    assert set(looked) <= {fact["iterator"] for fact in seen.lined}
    assert any("the hot line" in work["site"]["text"] for works in looked.values() for work in works)


@pytest.mark.slow
def test_a_job_of_many_epochs_times_lines_in_a_few_workers_only(both: Both) -> None:
    _, seen = both("lined-long2")
    assert 1 <= len(seen.lined) <= MOST_LINED


def test_a_dataset_of_tensors_is_recognised(both: Both) -> None:
    _, seen = both("tensors0")
    assert seen.loaders[0]["in_memory_tensors"]
    assert not seen.loaders[0]["batched_fetch"]


def test_which_dataloader_an_iterator_is_of_is_reported(both: Both) -> None:
    """Where each epoch makes another one, the number is another, though the object may lie where the last one lay."""
    assert len({loader["made_by"] for loader in both("lined2")[1].loaders}) == 1
    assert len({loader["made_by"] for loader in both("tensors-anew0")[1].loaders}) == 2


def test_a_stream_ends_without_a_batch_of_its_own(both: Both) -> None:
    _, seen = both("stream0")
    assert len(seen.trainer[Kind.FETCH]) == 10
    assert len(seen.trainer[Kind.LOADER_NEXT]) == 12
    assert seen.loaders[0]["dataset_length"] is None


@pytest.mark.parametrize("mode", ["item-error1", "collate-error0", *MORE_ERRORS])
def test_the_users_error_is_printed_to_the_byte_as_without_us(both: Both, mode: str) -> None:
    bare, _ = both(mode)
    assert "Traceback" in bare.printed
    assert "in __getitem__" in bare.printed or "in collate" in bare.printed


def test_items_and_collate_are_reported_apart_while_it_is_wanted_and_nobody_elses_fetch_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data._utils import fetch

    from steptime.probe import loader

    maps, base = fetch._MapDatasetFetcher, fetch._BaseDatasetFetcher
    original = maps.__dict__["fetch"]
    monkeypatch.setattr(loader._LoaderState, "fetches", {maps: loader._Fetch(original, loader._become_worker)})
    monkeypatch.setattr(loader, "fetched", {})
    monkeypatch.setattr(loader, "collated", {})
    batches = iter(DataLoader(list(range(8)), batch_size=2))
    try:
        for wanted in (True, False, True, True, False, False):
            loader.distinguish(wanted)
            assert isinstance(maps.__dict__["fetch"], loader._Fetch) == wanted
            assert ("collate_fn" in vars(base)) == wanted
        next(batches)
        assert not loader.fetched
        loader.distinguish(True)
        assert next(batches).tolist() == [2, 3]
        assert loader.fetched.keys() == loader.collated.keys() != set()
        maps.fetch = somebodys = lambda self, index: "theirs"
        loader.distinguish(False)
        loader.distinguish(True)
        assert maps.__dict__["fetch"] is somebodys
        assert next(batches) == "theirs"
    finally:
        loader.distinguish(False)
        maps.fetch = original
