"""Collectives beside the link of the machine that they ran on."""

from __future__ import annotations

from dataclasses import replace

from steptime.hardware.machine import Machine
from steptime.ranks.comparison import RankComparison


def beside_link(ranks: RankComparison | None, machine: Machine | None) -> RankComparison | None:
    """The same with each collective's share of the measured link; as it is where none was measured, or where the ranks
    are of several hosts, between which lies another link, or where other programs disturbed the measurement. The link
    does no less than the quickest of the collectives."""
    link = machine.link if machine is not None else None
    if ranks is None or link is None or link.disturbed or len({row.host for row in ranks.rows}) != 1:
        return ranks
    rate = max(link.rate.value, *(row.bus_bandwidth or 0.0 for row in ranks.collectives), 0.0)
    return replace(
        ranks,
        collectives=tuple(
            replace(row, link_share=row.bus_bandwidth / rate) if row.bus_bandwidth is not None and rate > 0 else row
            for row in ranks.collectives
        ),
    )
