"""From a rank's trace to its summary: the map step. Nothing of the trace is kept."""

from __future__ import annotations

from steptime.arrays import Int64
from steptime.kineto.table import Trace
from steptime.ledger.account import account_for, has_kernels
from steptime.ledger.ledger import Ledger
from steptime.ledger.trace_steps import FoundSteps, find_steps, reach
from steptime.links.link import link
from steptime.ranks.exchanges import exchanges_of
from steptime.ranks.summary import RankSummary, Series


def summarise_trace(trace: Trace, rank: int, steps: FoundSteps | None = None) -> RankSummary | None:
    """A rank of which nothing but its trace is known; None where the trace has no step."""
    borders = (steps or find_steps(trace)).borders
    if not len(borders):
        return None
    windows = reach(trace, borders) if has_kernels(trace) else borders
    return summarise(trace, borders, windows, account_for(trace, borders), rank=rank)


def summarise(
    trace: Trace,
    borders: Int64,
    windows: Int64,
    ledger: Ledger,
    *,
    rank: int,
    host: str = "",
    flops: float = 0.0,
    numbers: tuple[int, ...] = (),
    series: Series | None = None,
) -> RankSummary:
    """A rank from its trace and what is known beside it. borders, windows: (n, 2) ns, the steps as host and ledger have
    them; ledger: of the steps that times are said of, which may be others. numbers: of the borders' steps in the job.
    """
    return RankSummary(
        rank=rank,
        name=f"rank {rank}",
        host=host,
        steps=len(windows),
        step=float(ledger.wall.mean()),
        accounts=tuple(ledger.entries.mean(axis=0).tolist()),
        exchanges=exchanges_of(trace, link(trace, borders), windows),
        numbers=numbers,
        flops=flops,
        series=series,
        world=trace.world_size,
    )
