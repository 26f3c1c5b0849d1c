"""Summaries of ranks built by hand: what each does between collectives is given, and the collectives follow from it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steptime.analysis.categories import Category
from steptime.analysis.stragglers.summary import Exchange, RankSummary

MS = 1_000_000
TRANSFER = 2 * MS
CALLS = 2
"""Collectives in each step."""


def job(
    work: npt.NDArray[np.float64], *, hosts: tuple[str, ...] = (), clocks: tuple[int, ...] = (), group: str = "dp"
) -> list[RankSummary]:
    """work: (ranks, steps, CALLS) ns of each rank before each collective. clocks: ns that a rank's clock is ahead."""
    ranks, steps, calls = work.shape
    start = np.zeros((ranks, steps * calls))
    reached, ends = 0.0, []
    for k in range(steps * calls):
        start[:, k] = reached + work[:, k // calls, k % calls]
        reached = float(start[:, k].max()) + TRANSFER
        ends.append(reached)
    end = np.broadcast_to(np.array(ends), start.shape)
    step = np.repeat(np.arange(steps), calls)
    shift = np.array(clocks) if clocks else np.zeros(ranks)
    return [
        summary(
            rank,
            exchange(start[rank] + shift[rank], end[rank] - start[rank], step, group, ranks),
            host=hosts[rank] if hosts else "",
            own=float(work[rank].sum()) / steps,
            wall=reached / steps,
            steps=steps,
        )
        for rank in range(ranks)
    ]


def exchange(
    start: npt.NDArray[np.float64],
    duration: npt.NDArray[np.float64],
    step: npt.NDArray[np.int64],
    group: str = "dp",
    size: int = 0,
    members: str = "",
) -> Exchange:
    """All-reduces of 64 MB."""
    whole = np.rint(start).astype(np.int64)
    lasts = np.rint(duration).astype(np.int64)
    return Exchange(
        "all_reduce", group, size, members, len(whole), 0, step, whole, lasts, np.full(len(whole), 64 << 20)
    )


def summary(
    rank: int, *exchanges: Exchange, host: str = "", own: float = 0.0, wall: float = 0.0, steps: int = 1
) -> RankSummary:
    """A rank whose own time is all input."""
    categories = [0.0] * len(Category)
    categories[Category.INPUT] = own
    categories[Category.COMMUNICATION] = wall - own
    return RankSummary(rank, f"rank {rank}", host, steps, wall, tuple(categories), exchanges)
