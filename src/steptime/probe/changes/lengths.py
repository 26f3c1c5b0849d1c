"""Batches of rows with similar lengths, which need less padding."""

from __future__ import annotations

import copy
import random
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler

from steptime.probe.changes.loading import Arguments, LoaderChange, same_random_numbers, spread
from steptime.probe.identity import process_group
from steptime.probe.ours import pass_on

WINDOW, FEWEST_WINDOWS = 50, 4
"""Batches drawn and sorted by length at a time, and the least number of such windows per epoch: the same as
transformers' LengthGroupedSampler (trainer_pt_utils.py)."""
TOKENS = "input_ids"
"""Key of the tokens in a row of transformers'."""
OWN = frozenset({"sampler", "_dataset", "_size", "_batches", "_lengths"})


class SimilarLengths(LoaderChange):
    """Batches of similar lengths. arguments: `site`, see LoaderChange. The loader's sampler draws as before; within a
    window of batches, rows of similar length share a batch. Each item is made once more, for its length."""

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
        distributed = process_group()
        alone = distributed is None or distributed.get_world_size() == 1
        if not alone and not isinstance(sampler, DistributedSampler):
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
        """True if its rows are sorted already."""
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
