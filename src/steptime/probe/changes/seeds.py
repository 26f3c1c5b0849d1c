"""Seeds of a variant: every generator starts from the same number, whether the job seeds itself or not.

Measured: with these, and PYTHONHASHSEED=0 from the launch, a job in a fresh process repeats bit for bit on a CPU.
"""

from __future__ import annotations

import functools
import itertools
import numbers
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

LARGEST_SEED = 2**32
"""Upper bound of numpy's seeds."""


def install(seed: int, offset: int) -> None:
    """Seeds random, numpy (imported by torch, if it is installed) and torch with `seed`. Shifts the job's own seeds by
    `offset`, and replaces its random seeds by seeds that follow from `seed`."""
    start = (seed + offset) % LARGEST_SEED
    torch.manual_seed(start)
    chances = _seed_all(start, offset)
    if offset:
        _wrap(torch, "manual_seed", offset, chances)
        torch.random.manual_seed = torch.manual_seed
        for name in ("manual_seed", "manual_seed_all"):
            _wrap(torch.cuda, name, offset, chances)


def install_chance(seed: int) -> None:
    """Replaces only the job's random seeds, by seeds that follow from `seed`, so that two runs draw the same numbers.

    Generators with a fixed default seed (torch's, on a CPU), and seeds that the job sets, stay the same."""
    _seed_all(seed, 0)
    torch.cuda.manual_seed_all(seed)  # waits until a device is used


def _seed_all(start: int, offset: int) -> Iterator[int]:
    """Seeds Python, numpy and torch's random seeds. Returns the iterator of seeds that replace random ones."""
    chances = itertools.count(start % LARGEST_SEED + 1)
    random.seed(start)
    _wrap(random, "seed", offset, chances)
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    if numpy_random is not None:
        numpy_random.seed(start % LARGEST_SEED)
        _wrap(numpy_random, "seed", offset, chances)
        _wrap(numpy_random, "default_rng", offset, chances)
    torch.seed = torch.random.seed = functools.partial(_chance, torch.manual_seed, chances)
    return chances


def _chance(manual_seed: Callable[[int], Any], chances: Iterator[int]) -> int:
    seed = next(chances)
    manual_seed(seed)
    return seed


def _wrap(module: Any, name: str, offset: int, chances: Iterator[int]) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def seeded(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.pop("seed", kwargs.pop("a", None))
        if given is None:
            given = next(chances)
        elif isinstance(given, numbers.Integral) and offset:
            given = (int(given) + offset) % LARGEST_SEED
        return original(given, *args[1:], **kwargs)

    seeded._torchdynamo_disable = True  # type: ignore[attr-defined]
    setattr(module, name, seeded)
