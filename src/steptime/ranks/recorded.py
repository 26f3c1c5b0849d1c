"""From a recorded process to its summary: its steady steps by the watch, its collectives from the profiled ones."""

from __future__ import annotations

import numpy as np

from steptime.intervals import contains
from steptime.ledger.account import has_kernels
from steptime.ledger.recorded import RecordedAccount, Window
from steptime.ledger.trace_steps import reach
from steptime.links.link import link
from steptime.ranks.exchanges import exchanges_of
from steptime.ranks.summary import Exchange, RankSummary, Series, blocks
from steptime.recording.recording import Process
from steptime.timeline.layout import Layout
from steptime.timeline.timeline import Phase

SURELY_OWN = (Phase.INPUT, Phase.TRANSFER)
"""On an accelerator the host waits for the device anywhere, so only these phases of it are surely the rank's own."""


def summarise_process(process: Process, layout: Layout, account: RecordedAccount) -> RankSummary:
    """A process with at least one steady step. Its rank is 0 where nothing says it."""
    window = _window(account)
    exchanges: tuple[Exchange, ...] = ()
    numbers = np.zeros(0, np.int64)
    steps = layout.timeline.steps
    if window is not None:
        borders = window.borders
        reached = reach(window.trace, borders) if has_kernels(window.trace) else borders
        exchanges = exchanges_of(window.trace, link(window.trace, borders), reached)
        numbers = np.searchsorted(steps.end, borders[:, 1] - window.shift)
    ledger, facts = account.ledger, process.facts
    rank = facts.rank if facts.rank is not None else 0
    return RankSummary(
        rank=rank,
        name=f"rank {rank}",
        host=facts.host,
        steps=max(1, len(numbers)),
        step=float(ledger.wall.mean()),
        accounts=tuple(ledger.entries.mean(axis=0).tolist()),
        exchanges=exchanges,
        numbers=tuple(numbers.tolist()),
        flops=sum(operator.flops or 0.0 for operator in account.operators),
        series=_series(layout, window, exchanges),
        world=facts.world_size,
    )


def _window(account: RecordedAccount) -> Window | None:
    """The one with most steps that nobody slowed with stacks."""
    timed = [window for window in account.windows if not window.stacks and len(window.borders)]
    return max(timed, key=lambda window: len(window.borders)) if timed else None


def _series(layout: Layout, window: Window | None, exchanges: tuple[Exchange, ...]) -> Series | None:
    """The rank's own time by step: what lies outside of the phases in which it waits for others."""
    steps = layout.timeline.steps
    if window is not None and has_kernels(window.trace):
        own = steps.phases[:, SURELY_OWN].sum(axis=1)
    else:
        own = steps.duration - steps.phases[:, _waiting_phases(window, exchanges)].sum(axis=1)
    return blocks(own, steps.steady, 0)


def _waiting_phases(window: Window | None, exchanges: tuple[Exchange, ...]) -> list[int]:
    """Backward, and whatever other phase a collective is begun in: buffers are exchanged in forward, and sharded
    weights too."""
    found = {int(Phase.BACKWARD)}
    for phase in (Phase.FORWARD, Phase.OPTIMIZER):
        held = window.phases.get(phase) if window is not None else None
        if held is not None and len(held):
            found |= {int(phase)} if any(contains(held, each.begin).any() for each in exchanges) else set()
    return sorted(found)
