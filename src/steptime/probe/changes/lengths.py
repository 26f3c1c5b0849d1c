"""Rows of like length in one batch, so that less of it is padding."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler

from steptime.probe.changes.loading import Arguments, LoaderChange, same_random_numbers, spread

WINDOW, FEWEST_WINDOWS = 50, 4
"""Batches that are drawn at a time and sorted by length, and how many such draws an epoch has at least: as
transformers' LengthGroupedSampler (trainer_pt_utils.py) does it."""
TOKENS = "input_ids"
"""What a row of transformers' holds its tokens by."""


class SimilarLengths(LoaderChange):
    """arguments: `site`, see LoaderChange. The sampler of the loader draws as before; of what it draws for some batches
    in a row, rows of like length come into one batch. Each item is made once more, for its length."""

    def decide(self, arguments: Arguments) -> str:
        dataset, batches = arguments["dataset"], arguments["batch_sampler"]
        batches = getattr(batches, "batch_sampler", batches)  # accelerate's part of them for one rank
        if isinstance(getattr(batches, "sampler", None), LengthSampler):  # a framework makes the loader anew
            return ""
        if batches is not None or not arguments["batch_size"]:
            return "the job makes its batches itself"
        if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__len__"):
            return "the dataset has no length: its rows cannot be sorted"
        sampler = arguments["sampler"]
        if sampler is None:
            sampler = RandomSampler(dataset, generator=arguments["generator"])
        ordered = LengthSampler(sampler, dataset, int(arguments["batch_size"]))
        with same_random_numbers():
            lengths = {ordered.length_of(number) for number in spread(len(dataset))}
        if None in lengths:
            return "an item of the dataset has no length"
        if len(lengths) < 2:
            return "all rows that were looked at are of one length"
        arguments["sampler"], arguments["shuffle"] = ordered, None
        return ""


class LengthSampler:
    """Yields what a sampler does, so that batches which are cut from it in order hold rows of like length; the batches
    of a window come in an order by chance, which takes no random numbers of the job's."""

    def __init__(self, sampler: Any, dataset: Any, batch_size: int) -> None:
        self.sampler = sampler
        self._dataset, self._batch_size = dataset, batch_size
        self._batches = max(1, min(WINDOW, len(dataset) // (FEWEST_WINDOWS * batch_size)))
        self._lengths: dict[Any, int | None] = {}

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        """What a job asks of its sampler (set_epoch)."""
        if name == "sampler":  # not there before __init__ has run, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __iter__(self) -> Iterator[Any]:
        drawn, size = iter(self.sampler), self._batch_size
        while window := list(islice(drawn, self._batches * size)):
            chance = random.Random(zlib.crc32(repr(window[:size]).encode()))
            with same_random_numbers():
                window.sort(key=lambda index: self.length_of(index) or 0)
            groups = [window[begin : begin + size] for begin in range(0, len(window), size)]
            rest = [groups.pop()] if len(groups[-1]) < size else []  # the last batch of an epoch is the short one
            chance.shuffle(groups)
            for group in (*groups, *rest):
                yield from group

    def length_of(self, index: Any) -> int | None:
        """Of a row; None where it has none."""
        if index not in self._lengths:
            self._lengths[index] = _length(self._dataset[index])
        return self._lengths[index]


def _length(item: Any) -> int | None:
    if isinstance(item, Mapping):
        item = item[TOKENS] if TOKENS in item else next(iter(item.values()), None)
    elif isinstance(item, tuple) and item:
        item = item[0]
    try:
        return len(item)
    except TypeError:
        return None
