"""Clocks of different hosts, laid beside one another by the collectives that all of them took part in.

A collective ends on all ranks within its transfer, so the differences of its ends are the difference of the clocks plus
what the ranks end apart. Their median is the offset, and how far they scatter is how well it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.arrays import Int64
from steptime.estimates import median_of
from steptime.ranks.comparison import Clock
from steptime.ranks.matching import Shared
from steptime.ranks.summary import RankSummary

LEAST_ENDS = 3
"""Collectives without which nothing is said."""
MOST_ENDS = 2000


def clocks(summaries: Sequence[RankSummary], shared: Sequence[Shared]) -> tuple[Clock, ...]:
    """The clocks of further hosts against that of the first; those of one host share one. Empty where no host is named.

    The uncertainty is half of the interval of the median. What one link ends later every time, it cannot show.
    """
    hosts = list(dict.fromkeys(summary.host for summary in summaries))
    if len(hosts) < 2 or not all(hosts):
        return ()
    differences: dict[str, list[Int64]] = {host: [] for host in hosts[1:]}
    for each in shared:
        named = [summaries[index].host for index in each.ranks.tolist()]
        if hosts[0] not in named:
            continue
        base = each.end[named.index(hosts[0])]
        for host in hosts[1:]:
            if host in named:
                differences[host].append(base - each.end[named.index(host)])
    return tuple(_clock(host, np.concatenate(found)) for host, found in differences.items() if _enough(found))


def _enough(found: Sequence[Int64]) -> bool:
    return sum(map(len, found)) >= LEAST_ENDS


def _clock(host: str, differences: Int64) -> Clock:
    estimate = median_of(differences[:MOST_ENDS])
    return Clock(host, round(estimate.value), round((estimate.high - estimate.low) / 2), estimate.samples)
