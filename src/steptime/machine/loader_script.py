"""Times a loader of the user's, with the user's own torch. Run by path with the user's interpreter. No part of steptime
is imported here except its neighbours, which resolve names of places, store samples in other formats and copy to a
device.

    python loader_script.py REQUEST

REQUEST is JSON: "loader" ("file.py:name": a DataLoader, a dataset, or a function that makes either), "settings" (a list
of what is changed about the loader), "seconds" (for each setting), "step" (ns that the training is away between two
batches), "parts" (whether items and collating are timed, too), "cold" (whether items are read with their files out of
the page cache, too), "formats" (whether samples are stored in other formats and read back), "answer" (the file that the
answer is written to, so that whatever the dataset prints stays its own).

Batches never end: where a sampler is used up it starts again, so that no worker is started again within a measurement.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import runpy
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench_script import give, loaded, main, quiet, sentence_of, tensors_of  # type: ignore[import-not-found]
from formats_script import OpenedFiles, cleared, formats_of  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, IterableDataset
from transfer_script import CudaCopies, transfers_of  # type: ignore[import-not-found]

BLOCKS = 8
"""Blocks per setting, each with a mean; enough for an interval."""
LEAST_BATCHES = 2
"""Fewest batches in a block; one of them may have waited in a queue."""
SETTLING = 2
"""Uncounted first batches per worker: they are all started at once, before the first is asked for."""
PATIENCE = 60.0
"""Most seconds for a single setting; a slower loader is judged by its batches until then."""
READY_SECONDS, READY_TIMES = 0.5, 5
"""READY_SECONDS: longest sleep before a batch is certain to be ready. READY_TIMES: number of such batches."""
FEW = 3
"""Most batches of which all are counted."""
PART_BATCHES = 64
"""Most batches that are read one by one, twice."""
MOST_SAMPLES, MOST_BYTES = 256, 128 << 20
"""Most samples that are stored in other formats, and most bytes that are kept in memory."""


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Answer to a request about the loader of a place: times of its parts, and of each setting."""
    opened = OpenedFiles() if request["parts"] else None
    try:
        if opened is not None:
            opened.watching = True
        target = loaded(request["loader"])
        loader = made(target)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {"failed": sentence_of(error)}
    unbatched = is_dataset(target) and not isinstance(target, DataLoader)
    return {"unbatched": unbatched, **answer_of_loader(loader, request, opened)}


def answer_of_loader(loader: Any, request: dict[str, Any], opened: OpenedFiles | None) -> dict[str, Any]:
    try:
        with quiet():
            parts = parts_of(loader, request, opened) if opened is not None else None
            formats = formats_of(samples_of(loader)) if request.get("formats") else []
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {"failed": sentence_of(error)}
    return {
        "torch": str(torch.__version__),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "dataset": type(loader.dataset).__name__,
        "workers": loader.num_workers,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "parts": parts,
        "formats": formats,
        **(transfers(loader) if opened is not None else {}),
        "settings": [timed(loader, each, request) for each in request["settings"]],
    }


def transfers(loader: Any) -> dict[str, Any]:
    """Dictionary of "transfers", times to copy the first batch to the device, or of "no_transfer", a reason."""
    device = CudaCopies()
    if not device.there():
        return {}
    try:
        batch = EpochBatches(changed(loader, {"workers": 0, "pin_memory": False})).next()
        return {"transfers": transfers_of(tensors_of(batch), device)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {"no_transfer": sentence_of(error)}


def job_answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a job until it asks a loader for its first batch, then times that loader and ends the process. request:
    "job" has the arguments of the interpreter ("train.py" or "-m", "package", then arguments); "dataset" is the class
    name of the wanted loader's dataset, "" for the first loader. Returns only if no such loader was asked."""
    opened = OpenedFiles() if request["parts"] else None
    own, here, seen = DataLoader.__iter__, os.getpid(), list[str]()

    def start(loader: Any) -> Any:
        name = type(loader.dataset).__name__
        if os.getpid() != here or request["dataset"] not in ("", name):
            seen.append(name)
            return own(loader)
        DataLoader.__iter__ = own
        give(answer_of_loader(loader, request, opened), request)
        sys.stdout.flush()
        os._exit(0)  # no code of the job's runs any more: it has not been trained

    DataLoader.__iter__ = start
    if opened is not None:
        opened.watching = True
    words = request["job"]
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = [words[1], *words[2:]], ""
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = list(words), str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        return {"failed": f"the job ended before it requested a batch from {wanted(request)}: {sentence_of(error)}"}
    also = f" (it used loaders of {', '.join(dict.fromkeys(seen))})" if seen else ""
    return {"failed": f"the job never requested a batch from {wanted(request)}{also}"}


def wanted(request: dict[str, Any]) -> str:
    return f"a loader of {request['dataset']}" if request["dataset"] else "a DataLoader"


def made(target: Any) -> Any:
    """DataLoader from a loader, a dataset, or a function that returns either. Raises TypeError."""
    if callable(target) and not isinstance(target, DataLoader) and not is_dataset(target):
        target = target()
    if isinstance(target, DataLoader):
        return target
    if is_dataset(target):
        return DataLoader(target)
    raise TypeError(
        f"it is of type {type(target).__name__}. Expected a DataLoader, a dataset, or a function that returns one"
    )


def is_dataset(target: Any) -> bool:
    return not isinstance(target, type) and (hasattr(target, "__getitem__") or isinstance(target, IterableDataset))


class Endless:
    """Sampler that starts again at its end."""

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


class Kept:
    """Dataset whose items are read once and kept in memory."""

    def __init__(self, dataset: Any, indices: Iterable[Any]) -> None:
        self.items = {index: dataset[index] for index in indices}

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


def kept(loader: Any) -> Any:
    """Loader that repeats its first batches with their items kept in memory. Raises TypeError."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise TypeError("items without an index, or batches without a sampler, cannot be cached")
    orders, indices, size = list[Any](), dict[Any, None](), 0
    for order in itertools.islice(loader.batch_sampler, PART_BATCHES):
        orders.append(order)
        indices |= dict.fromkeys(order)
        size += sum(bytes_of(loader.dataset[index]) for index in order) if len(orders) == 1 else 0
        if len(orders) * size >= MOST_BYTES:
            break
    dataset = Kept(loader.dataset, indices)
    return DataLoader(dataset, batch_sampler=Endless(orders), collate_fn=loader.collate_fn)


def changed(loader: Any, setting: dict[str, Any]) -> Any:
    """Copy of the loader with other workers, prefetch_factor, batch_size, pin_memory or context (how workers are
    started), or with its items kept in memory."""
    if setting.get("kept"):
        return kept(loader)
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
        options["batch_sampler"] = torch.utils.data.BatchSampler(Endless(loader.sampler), size, loader.drop_last)
    elif loader.batch_sampler is not None:
        options["batch_sampler"] = Endless(loader.batch_sampler)
    else:
        options |= {"batch_size": None, "sampler": Endless(loader.sampler)}
    return DataLoader(loader.dataset, **options)


def timed(loader: Any, setting: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Times of a loader in one setting. waits: mean wait in next() in each block, ns; first_ns: time of the first
    batch, with the start of the workers; received_ns: time to receive a ready batch."""
    before = torch.multiprocessing.get_sharing_strategy()
    try:
        if setting.get("sharing"):
            torch.multiprocessing.set_sharing_strategy(setting["sharing"])
        with quiet():
            return {**setting, **measured(changed(loader, setting), request)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {**setting, "failed": sentence_of(error)}
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def measured(loader: Any, request: dict[str, Any]) -> dict[str, Any]:
    batches, start = EpochBatches(loader), time.perf_counter_ns()
    batch = batches.next()
    first = time.perf_counter_ns() - start
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


class EpochBatches:
    """Batches of a loader, epoch after epoch. Raises ValueError for an empty epoch."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.iterator = loader, iter(loader)

    def next(self) -> Any:
        """Next batch; if an iterable dataset is exhausted, the first one of the next epoch."""
        for _ in range(2):
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
            self.iterator = iter(self.loader)
        raise ValueError("it yields no batch")


def block(batches: EpochBatches, seconds: float, away: float) -> float:
    """Mean time in next() over a block of batches, ns. away: time between two calls, as for a training step, s."""
    spent, count, end = 0, 0, time.perf_counter() + seconds
    while count < LEAST_BATCHES or time.perf_counter() < end:
        start = time.perf_counter_ns()
        batches.next()
        spent += time.perf_counter_ns() - start
        count += 1
        if away:
            time.sleep(away)
    return spent / count


def received(batches: EpochBatches, waits: list[float]) -> float:
    """Time of next() for a batch that is surely ready, ns: the cost of the queue and of shared memory."""
    times = []
    for _ in range(READY_TIMES):
        time.sleep(min(READY_SECONDS, 3 * max(waits) / 1e9 + 0.02))
        start = time.perf_counter_ns()
        batches.next()
        times.append(time.perf_counter_ns() - start)
    return float(sorted(times)[len(times) // 2])


def parts_of(loader: Any, request: dict[str, Any], opened: OpenedFiles) -> dict[str, Any]:
    """Times of an item and of collating a batch, ns, and the fractions of these in which the process had or wanted a
    CPU, read one by one in this process. again_ns: time of the same items read a second time; cold_ns: with their files
    out of the page cache."""
    seconds = request["seconds"]
    orders = list(itertools.islice(orders_of(loader), PART_BATCHES))
    first = read(loader, orders, seconds)
    opened.watching = False
    if isinstance(loader.dataset, IterableDataset):
        return first
    orders = orders[: first["batches"]]
    if request["cold"]:
        with cleared(sorted(opened.paths)) as fetched:
            cold = read(loader, orders, seconds)
        if fetched():
            first |= {"cold_ns": cold["item_ns"], "cold_busy": cold["busy"], "fetched": fetched() / cold["items"]}
    length = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
    return {**first, "again_ns": read(loader, orders, seconds)["item_ns"], "length": length}


def samples_of(loader: Any) -> list[Any]:
    """First items of the dataset, in the loader's order."""
    found, size = list[Any](), 0
    if isinstance(loader.dataset, IterableDataset):
        stream = iter(loader.dataset)
    else:
        orders = orders_of(loader)
        indices = orders if loader.batch_sampler is None else itertools.chain.from_iterable(orders)
        stream = (loader.dataset[index] for index in indices)
    for sample in itertools.islice(stream, MOST_SAMPLES):
        found.append(sample)
        size += bytes_of(sample)
        if size >= MOST_BYTES:
            break
    return found


def orders_of(loader: Any) -> Iterator[Any]:
    """Yields what each batch asks for: indices, or the number of items of an iterable dataset."""
    if isinstance(loader.dataset, IterableDataset):
        return itertools.repeat(loader.batch_size or 1, PART_BATCHES)
    return iter(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)


def read(loader: Any, orders: list[Any], seconds: float) -> dict[str, Any]:
    """Times of items and batches, read one by one in this process: medians over the batches, as a single disturbed one
    would count for all. With more than FEW batches, the first is not counted: its one-time work, such as an import,
    does not belong to an item."""
    dataset, per_item, collating, cpu, spent, batches, every = loader.dataset, list[float](), list[int](), 0, 0, 0, 0
    stream = iter(dataset) if isinstance(dataset, IterableDataset) else None
    end = time.perf_counter() + seconds
    for number, order in enumerate(orders):
        worked, start = time.process_time_ns() + waited_ns(), time.perf_counter_ns()
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
        if batches == 1 and len(orders) > FEW:
            per_item, collating, cpu, spent = [], [], 0, 0
        cpu, spent = cpu + time.process_time_ns() + waited_ns() - worked, spent + done - start
        per_item.append((collated - start) / len(made))
        collating.append(done - collated)
        batches, every = batches + 1, every + len(made)
        if time.perf_counter() > end and (number or len(orders) <= FEW):
            break
    return {
        "batches": batches,
        "items": every,
        "item_ns": statistics.median(per_item or [0.0]),
        "collate_ns": float(statistics.median(collating or [0])),
        "busy": min(1.0, cpu / max(spent, 1)),
    }


def waited_ns() -> int:
    """Time that this thread was ready without a CPU, ns (Linux's schedstat; 0 elsewhere); that is no wait for a
    disk."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def same(one: Any, other: Any) -> bool:
    """True if two batches hold the same tensors; False if they hold none."""
    left, right = tensors_of(one), tensors_of(other)
    alike = len(left) == len(right) and all(a.shape == b.shape for a, b in zip(left, right, strict=True))
    return bool(left) and alike and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def samples_in(batch: Any) -> int | None:
    """Number of samples in a batch: first dimension of its first tensor, None if it has no tensor."""
    for each in tensors_of(batch):
        return int(each.shape[0]) if each.dim() else 1
    return None


def bytes_of(batch: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors_of(batch))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs are tried, too
    main(lambda request: job_answer(request) if request.get("job") else answer_to(request))
