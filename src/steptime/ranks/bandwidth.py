"""Bandwidths of collectives, as NCCL-tests defines them (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).

Algorithm bandwidth is size over time. Bus bandwidth multiplies it by what an optimal algorithm has to send over each
rank's link per byte, so that it compares with the link's own rate whatever the number of ranks. The size is that of the
larger side: what all ranks get out of an all-gather, what each gives into a reduce-scatter.
"""

from __future__ import annotations

import re
from collections.abc import Callable

FACTORS: tuple[tuple[re.Pattern[str], Callable[[int], float]], ...] = (
    (re.compile(r"all_?reduce", re.IGNORECASE), lambda n: 2 * (n - 1) / n),
    (re.compile(r"all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE), lambda n: (n - 1) / n),
    (re.compile(r"broadcast|reduce|send|recv", re.IGNORECASE), lambda n: 1.0),
)
"""By torch's or NCCL's name of the operation, for n ranks."""


def algorithm_bandwidth(size: float, nanoseconds: float) -> float | None:
    """B/s; None without a time."""
    return size / nanoseconds * 1e9 if nanoseconds > 0 else None


def bus_factor(name: str, ranks: int) -> float | None:
    """None for an operation that NCCL-tests does not know, and for one rank."""
    if ranks < 2:
        return None
    return next((factor(ranks) for pattern, factor in FACTORS if pattern.search(name)), None)
