"""Changes of the training DataLoader, and the choice of DataLoaders to change."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
import random
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from steptime.probe import sites
from steptime.probe.changes.applier import Applier, count, with_arguments
from steptime.probe.identity import ranks
from steptime.probe.items import random_states
from steptime.probe.objects import SideTable
from steptime.probe.ours import pass_on

Arguments = dict[str, Any]


class LoaderChange(Applier, ABC):
    """Change of the arguments with which DataLoaders are constructed. The argument `site` selects one by file name and
    line, because a variant runs in a copy of the job's folder. Without it, training loaders are changed (shuffled, or
    with their own sampler).

    A framework may construct a loader again from the one it got: each construction is changed."""

    def __init__(self, target: str, arguments: Arguments) -> None:
        super().__init__(target, arguments)
        self._changed: SideTable[bool] = SideTable()
        self._datasets: dict[int, Any] = {}
        """Datasets of changed loaders, by identity, for changes that know by them what a framework makes again."""
        self._others = 0
        self._reason = ""
        self._used: set[int] = set()

    @abstractmethod
    def decide(self, arguments: Arguments) -> str:
        """Edits the arguments of one construction. Returns the reason why it stays the same, or ""."""

    def iterator(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """Returns the iterator of a changed loader. original: function that makes the loader's own iterator."""
        return original(loader)

    def is_known(self, settings: Arguments) -> bool:
        """True if these settings show that a framework makes the loader from one that was already changed."""
        return False

    def is_for(self, settings: Arguments) -> bool:
        """True if a loader with these arguments trains, for changes without a site. A loader for evaluation reads its
        items in order; an IterableDataset, which cannot be shuffled, counts as training."""
        if isinstance(settings["dataset"], IterableDataset):
            return True
        sampler = settings["batch_sampler"] if settings["batch_sampler"] is not None else settings["sampler"]
        inner = getattr(sampler, "sampler", sampler)
        return bool(settings["shuffle"]) or (inner is not None and not isinstance(inner, SequentialSampler))

    def install(self) -> None:
        """Wraps DataLoader.__init__, and observes new iterators."""
        signature = inspect.signature(DataLoader.__init__)

        def edit(bound: inspect.BoundArguments) -> None:
            settings = {name: each.default for name, each in signature.parameters.items()} | bound.arguments
            loader = settings.pop("self")
            if not self._is_meant(settings):
                self._others += 1
            elif reason := self.decide(settings):
                self._reason = self._reason or reason
            else:
                self.applied = True
                bound.arguments.update(settings)
                self._changed.keep(loader, True)

        DataLoader.__init__ = with_arguments(self, DataLoader.__init__, edit)
        original = DataLoader._get_iterator

        def _get_iterator(loader: Any) -> Any:
            if not self._changed.of(loader):
                return original(loader)
            self._used.add(id(loader))
            return self.iterator(loader, original)

        DataLoader._get_iterator = _get_iterator

    def _is_meant(self, settings: Arguments) -> bool:
        if not self.arguments.get("site"):
            return self.is_for(settings)
        file, _, line = str(self.arguments["site"]).rpartition(":")
        place = sites.user_frame(sys._getframe())
        here = place is not None and (os.path.basename(place[0]), str(place[1])) == (os.path.basename(file), line)
        return here or self.is_known(settings)

    def boundary(self, steps: int) -> None:
        """Updates the outcome after a step: loaders that gave batches by now are in use."""
        self.exercised = bool(self._used)
        if self.exercised:
            left = f", {self._others} left alone" if self._others else ""
            self.detail = f"{count(len(self._used), 'loader')} changed{left}"
        elif self._reason:
            self.detail = self._reason
        elif self.applied:
            self.detail = "no training step took a batch from a changed loader"
        elif self._others:
            self.detail = f"none of {count(self._others, 'DataLoader')} is the one to change"
        else:
            self.detail = "the job makes no DataLoader"


NONE = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}
"""Arguments that torch refuses without workers, with their neutral values."""
SETTINGS = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")


class LoaderSettings(LoaderChange):
    """Change of loader settings. arguments: any of SETTINGS, and non_blocking (copies from pinned memory)."""

    def install(self) -> None:
        super().install()
        if self.arguments.get("non_blocking") and torch.cuda.is_available():
            let_copies_go_on()

    def decide(self, arguments: Arguments) -> str:
        wanted = {name: self.arguments[name] for name in SETTINGS if name in self.arguments}
        dataset = arguments["dataset"]
        workers = wanted.get("num_workers", arguments["num_workers"])
        if workers and not arguments["num_workers"]:
            if isinstance(dataset, IterableDataset):
                return "an IterableDataset without workers: each worker would yield all of it"
            if _holds_device_tensors(dataset):
                return "the dataset holds tensors on a device, which a forked worker cannot use"
        if wanted.get("pin_memory") and not torch.accelerator.is_available():
            if len(wanted) == 1:
                return "there is no accelerator to pin memory for"
            del wanted["pin_memory"]
        if not workers:
            wanted.update(NONE)
        if all(arguments[name] == value for name, value in wanted.items()):
            return "" if self._datasets.get(id(dataset)) is dataset else "the loader already has this setting"
        self._datasets[id(dataset)] = dataset
        arguments.update(wanted)
        return ""

    def is_known(self, settings: Arguments) -> bool:
        """True if Accelerate or Lightning makes the loader again from a changed one, with its settings."""
        kept = (settings[name] == self.arguments[name] for name in SETTINGS[:-1] if name in self.arguments)
        return self._datasets.get(id(settings["dataset"])) is settings["dataset"] and all(kept)


def _holds_device_tensors(dataset: Any) -> bool:
    values: list[Any] = list(getattr(dataset, "__dict__", {}).values())
    values += [each for value in values if isinstance(value, list | tuple) for each in value[:8]]
    return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values)


def let_copies_go_on() -> None:
    """Makes copies from pinned memory by Tensor.to and Tensor.cuda non-blocking, unless the caller chooses."""
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _without_waiting(getattr(torch.Tensor, name), name))


def _without_waiting(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # By name, or by its place in cuda(device, non_blocking), to(dtype, non_blocking), to(other, non_blocking) and
        # to(device, dtype, non_blocking).
        second = name == "cuda" or (bool(args) and isinstance(args[0], torch.dtype | torch.Tensor))
        message = "non_blocking" in kwargs or len(args) > (1 if second else 2)
        # Only out of pinned memory: a copy to the CPU that does not wait would be read too early.
        if not message and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    return copy


class BatchSize(LoaderChange):
    """Change of the batch size. arguments: size."""

    def __init__(self, target: str, arguments: Arguments) -> None:
        super().__init__(target, arguments)
        self._size = int(arguments["size"])

    def decide(self, arguments: Arguments) -> str:
        """Sets the size. A loader that a framework makes again from a changed one has it already."""
        holder, dataset, size = arguments["batch_sampler"], arguments["dataset"], self._size
        before = getattr(holder, "batch_size", None) if holder is not None else arguments["batch_size"]
        if not isinstance(before, int):
            return "the loader makes no batches, or its sampler has no batch size"
        if size == before:
            return "" if id(dataset) in self._datasets else f"the batches already have {size} items"
        length = getattr(dataset, "__len__", None)
        if length is not None and length() < size:
            return f"the dataset has only {length()} items, less than a batch of {size}"
        if holder is not None:
            holder.batch_size = size
        else:
            arguments["batch_size"] = size
        self._datasets[id(dataset)] = dataset
        return ""


REAL_BATCHES = 2
"""Batches that are really loaded: the first one includes the start of the workers."""


class CachedBatch(LoaderChange):
    """Change that shows the upper bound of what faster input could save: the loader returns its first batches, then the
    last of them again and again. An epoch keeps its length. No arguments."""

    def __init__(self, target: str, arguments: Arguments) -> None:
        super().__init__(target, arguments)
        self._caches: dict[int, tuple[Any, list[Any]]] = {}
        self.repeated = 0

    def decide(self, arguments: Arguments) -> str:
        return ""

    def is_for(self, settings: Arguments) -> bool:
        """True for all loaders: repeated batches of evaluations are in no step."""
        return True

    def iterator(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """Returns an iterator with one cache per loader, across epochs. Outside of training nothing is repeated,
        because an evaluation over a loader without a length would never end."""
        if not torch.is_grad_enabled():
            return original(loader)
        _, cache = self._caches.setdefault(id(loader), (loader, []))
        return _Repeating(self, loader, original(loader) if len(cache) < REAL_BATCHES else None, cache)

    def boundary(self, steps: int) -> None:
        super().boundary(steps)
        if self._used:
            self.exercised = self.repeated > 0
            self.detail = f"a batch was repeated {count(self.repeated, 'time')}, of {count(len(self._used), 'loader')}"


class _Repeating:
    """Replacement for a loader's iterator."""

    def __init__(self, change: CachedBatch, loader: Any, real: Any, cache: list[Any]) -> None:
        self._change, self._real, self._cache = change, real, cache
        self._given = 0
        try:
            self._length: float = len(loader)
        except TypeError:
            self._length = float("inf")

    def __iter__(self) -> _Repeating:
        return self

    def __len__(self) -> int:
        return int(self._length)

    def __next__(self) -> Any:
        if self._given >= self._length:
            raise StopIteration
        if self._real is not None and len(self._cache) < REAL_BATCHES:
            self._cache.append(next(self._real))
        else:
            self._real = None  # its workers end
            self._change.repeated += 1
        self._given += 1
        return _copied(self._cache[-1])

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Resets for a new epoch; a loader with persistent workers calls it."""
        self._given = 0


def _copied(batch: Any) -> Any:
    """Returns the batch in new containers, because jobs add and remove items."""
    if type(batch) is dict:
        return {key: _copied(value) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_copied(value) for value in batch)
    return copy.copy(batch) if hasattr(batch, "keys") else batch


class SharingStrategy(LoaderChange):
    """Change of the sharing strategy of tensors. arguments: strategy ("file_system", "file_descriptor"), and `site`,
    see LoaderChange. It holds for this process and its forked children; exercised once a training loader with workers
    is read."""

    _set = False

    def install(self) -> None:
        self._strategy, before = str(self.arguments["strategy"]), multiprocessing.get_sharing_strategy()
        self._set = before != self._strategy
        if not self._set:
            self.detail = f"tensors are already shared by {before}"
            return
        multiprocessing.set_sharing_strategy(self._strategy)
        super().install()

    def decide(self, arguments: Arguments) -> str:
        return "" if arguments["num_workers"] else "the loader has no workers"

    def boundary(self, steps: int) -> None:
        if self._set:
            super().boundary(steps)
            if multiprocessing.get_sharing_strategy() != self._strategy:
                self.exercised, self.detail = False, "the job has set another strategy"


ASKED_AGAIN = 8
"""Items that are made again for comparison: evenly spread when the list is complete, and later the first used ones."""
LATER = (2, 4)
"""Steps after which used items are made again: before a variant is timed (trials/results.py, WARM_UP)."""


class KeptItems(list[Any]):
    """List of a dataset's items, made once. asked: indices of the first items used in this process."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.asked: list[int] = []

    def __getitem__(self, index: Any) -> Any:
        if len(self.asked) < ASKED_AGAIN:
            self.asked.append(index)
        return super().__getitem__(index)


class CachedItems(LoaderChange):
    """Change that makes all items once, at the loader's construction. arguments: `site`, see LoaderChange. seconds:
    time for making them. Not applied if an item differs when made again, or takes random numbers."""

    def __init__(self, target: str, arguments: Arguments) -> None:
        super().__init__(target, arguments)
        self._kept: list[tuple[Any, KeptItems]] = []
        self._changed_item = ""

    def decide(self, arguments: Arguments) -> str:
        dataset = arguments["dataset"]
        if any(dataset is items for _, items in self._kept):  # a framework makes the loader again
            return ""
        if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__len__"):
            return "the dataset has no length, so its items cannot be listed"
        if hasattr(dataset, "set_epoch"):
            return "the dataset has set_epoch, so its items change with the epoch"
        start, before = time.perf_counter(), random_states()
        length = len(dataset)
        items = KeptItems([dataset[index] for index in range(length)])
        self.seconds = round(self.seconds + time.perf_counter() - start, 3)
        if random_states() != before:
            return "making an item draws random numbers; cached items would never vary"
        if not self._stay(arguments, items):
            return DIFFERENT
        self._kept.append((dataset, items))
        arguments["dataset"] = items
        return ""

    def _stay(self, arguments: Arguments, items: KeptItems) -> bool:
        """True if items are equal when made again. A custom collate function runs first on one batch, since it may
        change items later in workers, where they cannot be compared."""
        dataset, seen = arguments["dataset"], spread(len(items))
        if arguments["collate_fn"] is not None and arguments["batch_size"]:
            batch = list(range(min(len(items), int(arguments["batch_size"]))))
            with same_random_numbers():
                arguments["collate_fn"]([list.__getitem__(items, each) for each in batch])
            seen = sorted({*seen, *batch[:ASKED_AGAIN]})
        return all(same(list.__getitem__(items, each), dataset[each]) for each in seen)

    def is_known(self, settings: Arguments) -> bool:
        return any(settings["dataset"] is items for _, items in self._kept)

    def boundary(self, steps: int) -> None:
        """Compares used items again (see LATER), because training may change them."""
        super().boundary(steps)
        if steps in LATER and not self._changed_item:
            for dataset, items in self._kept:
                if not all(same(list.__getitem__(items, each), dataset[each]) for each in items.asked):
                    self._changed_item = DIFFERENT
        if self._changed_item:
            self.exercised, self.detail = False, self._changed_item
        elif self.exercised:
            self.detail = f"{count(sum(len(items) for _, items in self._kept), 'item')} made in {self.seconds:.1f} s"


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Context manager that restores, at its end, the random states of torch on the CPU, of numpy and of Python."""
    numpy, numbers, state = sys.modules.get("numpy.random"), random.getstate(), torch.get_rng_state()
    legacy = numpy.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(numbers)
        torch.set_rng_state(state)
        if numpy is not None:
            numpy.set_state(legacy)


DIFFERENT = "an item is not the same when it is asked for a second time"


def spread(length: int) -> list[int]:
    """Returns some indices of `length` items, evenly spaced from the first to the last."""
    return sorted({round(number * (length - 1) / (ASKED_AGAIN - 1)) for number in range(ASKED_AGAIN)}) if length else []


def same(one: Any, other: Any) -> bool:
    """True if two items are equal, bit for bit for numbers; False if they cannot be compared."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "tobytes") and hasattr(one, "shape"):  # an array of numpy's
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other)


WINDOW, FEWEST_WINDOWS = 50, 4
"""Batches drawn and sorted by length at a time, and the least number of such windows per epoch: the same as
transformers' LengthGroupedSampler (trainer_pt_utils.py)."""
TOKENS = "input_ids"
"""Key of the tokens in a row of transformers'."""
OWN = frozenset({"sampler", "_dataset", "_size", "_batches", "_lengths"})


class SimilarLengths(LoaderChange):
    """Change to batches of similar lengths. arguments: `site`, see LoaderChange. The loader's sampler draws as before;
    within a window of batches, rows of similar length share a batch. Each item is made once more, for its length."""

    def decide(self, arguments: Arguments) -> str:
        if self.is_known(arguments):  # a framework makes the loader again
            return ""
        dataset, sampler = arguments["dataset"], arguments["sampler"]
        if arguments["batch_sampler"] is not None or not arguments["batch_size"]:
            return "the job makes its batches itself"
        if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__len__"):
            return "the dataset has no length, so its rows cannot be sorted"
        if not self.is_for(arguments):
            return "the loader reads its rows in order"
        if ranks() > 1 and not isinstance(sampler, DistributedSampler):
            return "ranks share the rows without a DistributedSampler"
        if sampler is None:
            sampler = RandomSampler(dataset, generator=arguments["generator"])
        ordered = LengthSampler(sampler, dataset, int(arguments["batch_size"]))
        with same_random_numbers():
            lengths = {ordered.length_of(number) for number in spread(len(dataset))}
        if None in lengths:
            return "an item of the dataset has no length"
        if len(lengths) < 2:
            return "all inspected rows have one length"
        arguments["sampler"], arguments["shuffle"] = ordered, None
        return ""

    def is_known(self, settings: Arguments) -> bool:
        """True if the loader's rows are sorted already."""
        batches = getattr(settings["batch_sampler"], "batch_sampler", settings["batch_sampler"])  # accelerate's
        return any(type(each) is LengthSampler for each in (settings["sampler"], getattr(batches, "sampler", None)))


class LengthSampler:
    """Sampler that reorders another one's indices, so that consecutive batches hold rows of similar length. The batches
    of a window come in random order, without the job's random numbers. Other attributes are read from and set on the
    inner sampler."""

    def __init__(self, sampler: Any, dataset: Any, batch_size: int) -> None:
        self.sampler, self._size = sampler, batch_size
        self._dataset = copy.copy(dataset)  # what it opens when it is first asked is not for the workers
        rows = len(sampler) if hasattr(sampler, "__len__") else len(dataset)
        self._batches = max(1, min(WINDOW, rows // (FEWEST_WINDOWS * batch_size)))
        self._lengths: dict[int, int | None] = {}

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Type of the inner sampler, because jobs check for samplers of ranks or their own; not for torch's
        RandomSampler, which a framework may replace."""
        return LengthSampler if type(self.sampler) is RandomSampler else type(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name in OWN:  # not there before __init__ has run, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.sampler, name, value)

    def __iter__(self) -> Iterator[Any]:
        drawn, size = iter(self.sampler), self._size
        while window := list(islice(drawn, self._batches * size)):
            whole = len(window) - len(window) % size  # the last batch of an epoch is the short one, of what came last
            chance = random.Random(zlib.crc32(repr(window[:size]).encode()))
            with same_random_numbers():
                ordered = sorted(window[:whole], key=lambda index: self.length_of(index) or 0)
            groups = [ordered[start : start + size] for start in range(0, whole, size)]
            chance.shuffle(groups)
            for group in (*groups, window[whole:]):
                yield from group

    def length_of(self, index: Any) -> int | None:
        """Returns the length of a row; None if it has none, or cannot be made here."""
        try:
            number = int(index)
            if number not in self._lengths:
                self._lengths[number] = _length(self._dataset[index])
            return self._lengths[number]
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the user's __getitem__ may raise anything
            pass_on(error)
            return None


def _length(item: Any) -> int | None:
    if isinstance(item, Mapping):
        item = item[TOKENS] if TOKENS in item else next(iter(item.values()), None)
    elif isinstance(item, tuple) and item:
        item = item[0]
    try:
        return len(item)
    except TypeError:
        return None
