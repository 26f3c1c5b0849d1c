"""Seeds of a variant: every generator starts from the same number, whether the job seeds itself or not.

Measured: with these, and PYTHONHASHSEED=0 from the launch, a job repeated in a fresh process is bitwise equal on a CPU.
"""

from __future__ import annotations

import functools
import itertools
import numbers
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

LARGEST_SEED = 2**32
"""numpy's seeds end here."""


def install(seed: int, offset: int) -> None:
    """Seeds random, numpy (torch has imported it, where it is installed) and torch; a seed of the job's own is shifted
    by `offset`, and one that it leaves to chance is made from ours."""
    start = (seed + offset) % LARGEST_SEED
    chances = itertools.count(start + 1)
    random.seed(start)
    torch.manual_seed(start)
    _wrap(random, "seed", offset, chances)
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    if numpy_random is not None:
        numpy_random.seed(start)
        _wrap(numpy_random, "seed", offset, chances)
        _wrap(numpy_random, "default_rng", offset, chances)
    torch.seed = torch.random.seed = functools.partial(_chance, torch.manual_seed, chances)
    if offset:
        _wrap(torch, "manual_seed", offset, chances)
        torch.random.manual_seed = torch.manual_seed
        for name in ("manual_seed", "manual_seed_all"):
            _wrap(torch.cuda, name, offset, chances)


def install_chance(seed: int) -> None:
    """What the job leaves to chance, and nothing else, is made from `seed`: two runs of it then draw the same numbers.

    A generator that starts from a seed of its own (torch's, on a CPU), and a seed that the job sets, stay as they are.
    """
    chances = itertools.count(seed % LARGEST_SEED + 1)
    random.seed(seed)
    _wrap(random, "seed", 0, chances)
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    if numpy_random is not None:
        numpy_random.seed(seed % LARGEST_SEED)
        _wrap(numpy_random, "seed", 0, chances)
        _wrap(numpy_random, "default_rng", 0, chances)
    torch.seed = torch.random.seed = functools.partial(_chance, torch.manual_seed, chances)
    torch.cuda.manual_seed_all(seed)  # waits until a device is used


def _chance(manual_seed: Callable[[int], Any], chances: Any) -> int:
    seed: int = next(chances)
    manual_seed(seed)
    return seed


def _wrap(module: Any, name: str, offset: int, chances: Any) -> None:
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
