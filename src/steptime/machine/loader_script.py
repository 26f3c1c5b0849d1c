"""Times a loader of the user's, with the user's own torch. Run by path with the user's interpreter: no part of steptime
is imported here but its neighbour, which finds what a place names.

    python loader_script.py REQUEST

REQUEST is JSON: "loader" ("file.py:name": a DataLoader, a dataset, or a function that makes either), "settings" (a list
of what is changed about the loader), "seconds" (for each setting), "step" (ns that the training is away between two
batches), "parts" (whether items and collating are timed, too), "answer" (the file that the answer is written to, so
that whatever the dataset prints stays its own).

Batches never end: where a sampler is used up it begins again, so that no worker is started anew within a measurement.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench_script import INTERRUPTED, loaded, sentence_of, tensors_of  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, IterableDataset

BLOCKS = 8
"""Of a setting: so many means, of which an interval can be made."""
LEAST_BATCHES = 2
"""In a block, of which one may have waited in a queue."""
SETTLING = 2
"""Batches for each worker that are not counted: they are begun before anybody asks, all at once."""
PATIENCE = 60.0
"""Seconds for a single setting: a loader that is slower is told from what it gave until then."""
READY_SECONDS, READY_TIMES = 0.5, 5
"""How long a batch is waited for at most until it is surely there, and how often."""
PART_BATCHES = 64
"""Read one by one at most, twice."""


def main() -> None:
    request = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs are tried, too
    try:
        answer = answer_to(request)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """What the loader is, its parts, and each setting."""
    try:
        target = loaded(request["loader"])
        loader = made(target)
        parts = parts_of(loader, request["seconds"]) if request["parts"] else None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {"failed": sentence_of(error)}
    return {
        "torch": str(torch.__version__),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "dataset": type(loader.dataset).__name__,
        "batch_size": loader.batch_size,
        "workers": loader.num_workers,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "unbatched": is_dataset(target) and not isinstance(target, DataLoader),
        "parts": parts,
        "settings": [timed(loader, each, request) for each in request["settings"]],
    }


def made(target: Any) -> Any:
    """The DataLoader that a place names. Raises TypeError."""
    if callable(target) and not isinstance(target, DataLoader) and not is_dataset(target):
        target = target()
    if isinstance(target, DataLoader):
        return target
    if is_dataset(target):
        return DataLoader(target)
    raise TypeError(
        f"it is of type {type(target).__name__}, neither a DataLoader nor a dataset nor a function that makes one"
    )


def is_dataset(target: Any) -> bool:
    return not isinstance(target, type) and (hasattr(target, "__getitem__") or isinstance(target, IterableDataset))


class Endless:
    """A sampler that begins again where it is used up."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            given = False
            for each in self.sampler:
                given = True
                yield each
            if not given:
                return


def changed(loader: Any, setting: dict[str, Any]) -> Any:
    """The loader with other workers, prefetch_factor, batch_size, pin_memory, or context (how workers are started)."""
    workers = setting.get("workers", loader.num_workers)
    options: dict[str, Any] = {
        "num_workers": workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": setting.get("pin_memory", loader.pin_memory),
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
        "timeout": loader.timeout if workers else 0,
    }
    if workers:
        options["prefetch_factor"] = setting.get("prefetch_factor") or loader.prefetch_factor or 2
        options["multiprocessing_context"] = setting.get("context") or loader.multiprocessing_context
    size = setting.get("batch_size")
    if isinstance(loader.dataset, IterableDataset):
        options |= {"batch_size": size or loader.batch_size, "drop_last": loader.drop_last}
    elif size and loader.batch_sampler is not None:
        own = torch.utils.data.BatchSampler(Endless(loader.sampler), size, loader.drop_last)
        options["batch_sampler"] = own
    elif loader.batch_sampler is not None:
        options["batch_sampler"] = Endless(loader.batch_sampler)
    else:
        options |= {"batch_size": None, "sampler": Endless(loader.sampler)}
    return DataLoader(loader.dataset, **options)


def timed(loader: Any, setting: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """waits: ns in next() for a batch, on average over each block; first_ns: of the first batch, with the start of the
    workers; received_ns: of a batch that is ready."""
    before = torch.multiprocessing.get_sharing_strategy()
    try:
        if setting.get("sharing"):
            torch.multiprocessing.set_sharing_strategy(setting["sharing"])
        return {**setting, **measured(changed(loader, setting), setting, request)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {**setting, "failed": sentence_of(error)}
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def measured(loader: Any, setting: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    batches, begin = Batches(loader), time.perf_counter_ns()
    batch = batches.next()
    first = time.perf_counter_ns() - begin
    several = loader.num_workers > 1 and isinstance(loader.dataset, IterableDataset)
    repeats = several and same(batch, batches.next())  # of the first worker, and of the second
    away, end = request["step"] / 1e9, time.perf_counter() + PATIENCE
    for _ in range(SETTLING * loader.num_workers):
        batches.next()
        time.sleep(away)
    waits: list[float] = []
    while len(waits) < BLOCKS and time.perf_counter() < end:
        waits.append(block(batches, request["seconds"] / BLOCKS, away))
    return {
        "waits": waits,
        "first_ns": first,
        "received_ns": received(batches, waits) if loader.num_workers else None,
        "repeats": repeats,
        "samples": samples_in(batch),
        "bytes": bytes_of(batch),
    }


class Batches:
    """Of a loader, epoch after epoch. An epoch that holds nothing raises ValueError."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.iterator = loader, iter(loader)

    def next(self) -> Any:
        """The next batch; of an iterable dataset that is used up, the first one of its next epoch."""
        for _ in range(2):
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
            self.iterator = iter(self.loader)
        raise ValueError("it gives no batch")


def block(batches: Batches, seconds: float, away: float) -> float:
    """ns in next(), on average."""
    spent, count, end = 0, 0, time.perf_counter() + seconds
    while count < LEAST_BATCHES or time.perf_counter() < end:
        begin = time.perf_counter_ns()
        batches.next()
        spent += time.perf_counter_ns() - begin
        count += 1
        if away:
            time.sleep(away)
    return spent / count


def received(batches: Batches, waits: list[float]) -> float:
    """ns of next() once a batch has surely come: what the queue and shared memory take."""
    times = []
    for _ in range(READY_TIMES):
        time.sleep(min(READY_SECONDS, 3 * max(waits) / 1e9 + 0.02))
        begin = time.perf_counter_ns()
        batches.next()
        times.append(time.perf_counter_ns() - begin)
    return float(sorted(times)[len(times) // 2])


def parts_of(loader: Any, seconds: float) -> dict[str, Any]:
    """ns of an item and of collating a batch, and the CPU's part of both, read one by one in this process; again: of
    the same items read a second time."""
    orders = list(itertools.islice(orders_of(loader), PART_BATCHES))
    first = read(loader, orders, seconds)
    if isinstance(loader.dataset, IterableDataset):
        return {**first, "again_ns": None}
    return {**first, "again_ns": read(loader, orders[: first["batches"]], seconds)["item_ns"]}


def orders_of(loader: Any) -> Iterator[Any]:
    """What each batch is made of: indices, or how many items of an iterable dataset."""
    if isinstance(loader.dataset, IterableDataset):
        yield from itertools.repeat(loader.batch_size or 1, PART_BATCHES)
    elif loader.batch_sampler is not None:
        yield from loader.batch_sampler
    else:
        yield from loader.sampler


def read(loader: Any, orders: list[Any], seconds: float) -> dict[str, Any]:
    dataset, items, collating, cpu, count, batches = loader.dataset, 0, 0, 0, 0, 0
    stream = iter(dataset) if isinstance(dataset, IterableDataset) else None
    end = time.perf_counter() + seconds
    for order in orders:
        worked, begin = time.process_time_ns(), time.perf_counter_ns()
        if stream is not None:
            made = list(itertools.islice(stream, order))
        elif loader.batch_sampler is None:
            made = [dataset[order]]
        elif hasattr(dataset, "__getitems__"):
            made = dataset.__getitems__(order)
        else:
            made = [dataset[index] for index in order]
        collated = time.perf_counter_ns()
        if not made:
            break
        loader.collate_fn(made if loader.batch_sampler is not None else made[0])
        done = time.perf_counter_ns()
        cpu += time.process_time_ns() - worked
        items, collating = items + collated - begin, collating + done - collated
        count, batches = count + len(made), batches + 1
        if time.perf_counter() > end:
            break
    return {
        "batches": batches,
        "item_ns": items / max(count, 1),
        "collate_ns": collating / max(batches, 1),
        "busy": min(1.0, cpu / max(items + collating, 1)),
    }


def same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same tensors; False where they hold none."""
    left, right = tensors_of(one), tensors_of(other)
    alike = len(left) == len(right) and all(a.shape == b.shape for a, b in zip(left, right, strict=True))
    return bool(left) and alike and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def samples_in(batch: Any) -> int | None:
    """The first length of what it holds, None where nothing has one."""
    for each in tensors_of(batch):
        return int(each.shape[0]) if each.dim() else 1
    return None


def bytes_of(batch: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors_of(batch))


if __name__ == "__main__":
    main()
