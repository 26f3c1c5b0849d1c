"""Times a loader of the user's, with the user's own torch. Run by path with the user's interpreter: no part of steptime
is imported here but its neighbours, which find what a place names, store samples in other formats and copy to a device.

    python loader_script.py REQUEST

REQUEST is JSON: "loader" ("file.py:name": a DataLoader, a dataset, or a function that makes either), "settings" (a list
of what is changed about the loader), "seconds" (for each setting), "step" (ns that the training is away between two
batches), "parts" (whether items and collating are timed, too), "cold" (whether items are read with their files out of
the page cache, too), "formats" (whether samples are stored in other formats and read back), "answer" (the file that the
answer is written to, so that whatever the dataset prints stays its own).

Batches never end: where a sampler is used up it starts again, so that no worker is started anew within a measurement.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import runpy
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench_script import INTERRUPTED, loaded, quiet, sentence_of, tensors_of  # type: ignore[import-not-found]
from formats_script import OpenedFiles, cleared, formats_of  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, IterableDataset
from transfer_script import CudaCopies, transfers_of  # type: ignore[import-not-found]

BLOCKS = 8
"""Blocks of a setting: so many means, of which an interval can be made."""
LEAST_BATCHES = 2
"""In a block, of which one may have waited in a queue."""
SETTLING = 2
"""Batches for each worker that are not counted: they are begun before anybody asks, all at once."""
PATIENCE = 60.0
"""Seconds for a single setting: a loader that is slower is told from what it gave until then."""
READY_SECONDS, READY_TIMES = 0.5, 5
"""How long a batch is waited for at most until it is surely there, and how often."""
FEW = 3
"""Batches of which none is left out."""
PART_BATCHES = 64
"""Read one by one at most, twice."""
MOST_SAMPLES, MOST_BYTES = 256, 128 << 20
"""Stored in other formats; kept in memory."""


def main() -> None:
    request = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs are tried, too
    try:
        answer = job_answer(request) if request.get("job") else answer_to(request)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    give(answer, request)


def give(answer: dict[str, Any], request: dict[str, Any]) -> None:
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The loader of a place, its parts, and each setting."""
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
    """ "transfers": what its first batch takes to the device, where there is one; "no_transfer": why not."""
    device = CudaCopies()
    if not device.there():
        return {}
    try:
        batch = EpochBatches(changed(loader, {"workers": 0, "pin_memory": False})).next()
        return {"transfers": transfers_of(tensors_of(batch), device)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {"no_transfer": sentence_of(error)}


def job_answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a job until it asks a loader for its first batch: that loader is timed then, and the process ends. "job" has
    the words behind the interpreter ("train.py" or "-m", "package", then arguments); "dataset" the name of the class
    whose loader is meant, "" for the first. Returns only where no such loader was asked."""
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
        return {"failed": f"the job ended before it asked {wanted(request)} for a batch: {sentence_of(error)}"}
    also = f" (it asked loaders of {', '.join(dict.fromkeys(seen))})" if seen else ""
    return {"failed": f"the job never asked {wanted(request)} for a batch{also}"}


def wanted(request: dict[str, Any]) -> str:
    return f"a loader of {request['dataset']}" if request["dataset"] else "a DataLoader"


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
    """A sampler that starts again where it is used up."""

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
    """A dataset whose items are read once and kept in memory."""

    def __init__(self, dataset: Any, indices: Iterable[Any]) -> None:
        self.items = {index: dataset[index] for index in indices}

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


def kept(loader: Any) -> Any:
    """The loader with the items of its first batches kept in memory, over and over. Raises TypeError."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise TypeError("items without an index and batches without a sampler cannot be kept")
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
    """The loader with other workers, prefetch_factor, batch_size, pin_memory, or context (how workers are started);
    or with its items kept in memory."""
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
    """waits: ns in next() for a batch, on average over each block; first_ns: of the first batch, with the start of the
    workers; received_ns: of a batch that is ready."""
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
    """Batches of a loader, epoch after epoch. An epoch that holds nothing raises ValueError."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.iterator = loader, iter(loader)

    def next(self) -> Any:
        """The next batch; of an iterable dataset that is used up, the first one of its next epoch."""
        for _ in range(2):
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
            self.iterator = iter(self.loader)
        raise ValueError("it gives no batch")


def block(batches: EpochBatches, seconds: float, away: float) -> float:
    """ns in next(), on average."""
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
    """ns of next() once a batch has surely come: what the queue and shared memory take."""
    times = []
    for _ in range(READY_TIMES):
        time.sleep(min(READY_SECONDS, 3 * max(waits) / 1e9 + 0.02))
        start = time.perf_counter_ns()
        batches.next()
        times.append(time.perf_counter_ns() - start)
    return float(sorted(times)[len(times) // 2])


def parts_of(loader: Any, request: dict[str, Any], opened: OpenedFiles) -> dict[str, Any]:
    """ns of an item and of collating a batch, and the share in which it had or wanted a CPU, read one by one in this
    process; again: of the same items read a second time; cold: with their files out of the page cache."""
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
    """Some of the dataset's items, as it gives them."""
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
    """Contents of each batch: indices, or how many items of an iterable dataset."""
    if isinstance(loader.dataset, IterableDataset):
        return itertools.repeat(loader.batch_size or 1, PART_BATCHES)
    return iter(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)


def read(loader: Any, orders: list[Any], seconds: float) -> dict[str, Any]:
    """One by one, in this process. With more than FEW batches the first is not counted: its one-time work, such as an
    import, is no part of an item's time."""
    dataset, items, collating, cpu, count, batches, every = loader.dataset, 0, 0, 0, 0, 0, 0
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
            items = collating = cpu = count = 0
        cpu += time.process_time_ns() + waited_ns() - worked
        items, collating = items + collated - start, collating + done - collated
        count, batches, every = count + len(made), batches + 1, every + len(made)
        if time.perf_counter() > end and (number or len(orders) <= FEW):
            break
    counted = batches - (batches > 1 and len(orders) > FEW)
    return {
        "batches": batches,
        "items": every,
        "item_ns": items / max(count, 1),
        "collate_ns": collating / max(counted, 1),
        "busy": min(1.0, cpu / max(items + collating, 1)),
    }


def waited_ns() -> int:
    """ns that this thread was ready and had no CPU (Linux's schedstat; 0 elsewhere): other programs are no disk."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def same(one: Any, other: Any) -> bool:
    """True if two batches hold the same tensors; False where they hold none."""
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
