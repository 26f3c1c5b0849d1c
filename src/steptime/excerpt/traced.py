"""The excerpt of a bare trace: the usual one of its steady steps."""

from __future__ import annotations

from steptime.arrays import Int64
from steptime.excerpt.cut import Beside, cut, usual
from steptime.excerpt.excerpt import Excerpt
from steptime.kineto.table import Trace


def excerpt_of_trace(trace: Trace, borders: Int64, windows: Int64, warm_up: int) -> Excerpt:
    """borders, windows: (n, 2) ns, the steady steps as the host and as the ledger have them, n at least 1. warm_up: how
    many steps lie before them."""
    at = usual(windows[:, 1] - windows[:, 0])
    count = len(windows)
    how = "the only steady step" if count == 1 else f"of {count} steady steps the one next to their median"
    return cut(trace, borders, windows, at, warm_up + at, how, Beside())
