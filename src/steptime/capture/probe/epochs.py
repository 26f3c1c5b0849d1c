"""How much of its epoch a job still has before it. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def steps_to_next(iterators: Iterable[Any], backwards: int, steps: int, wanted: int) -> int:
    """Steps until the next epoch of the loader, or 0 where this one has as many left as are wanted. It may be the
    last: a window that a job ends in is lost, and ends in the middle of the job's own end. `backwards` in `steps` so
    far: each takes a batch."""
    left, batches = _batches_left(iterators), max(1, -(-backwards // max(1, steps)))
    return left + 1 if left is not None and left < wanted * batches else 0


def _batches_left(iterators: Iterable[Any]) -> int | None:
    """Batches of its epoch that a loader in use still has, the most of any; None where nobody knows."""
    left = []
    for iterator in iterators:
        try:
            taken, total = int(iterator._num_yielded), len(iterator)
        except Exception:  # noqa: BLE001 - the probe's border: a stream without a length, a sampler of the job's own
            continue
        if 0 < taken <= total:
            left.append(total - taken)
    return max(left, default=None)
