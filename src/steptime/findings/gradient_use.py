"""The exchange of gradients as rules see it."""

from __future__ import annotations

from steptime.arrays import Int64
from steptime.estimates import mean_of_series
from steptime.findings.case import GradientUse
from steptime.kineto.table import Trace
from steptime.ranks.gradients import gradients_of


def gradient_use(trace: Trace, borders: Int64) -> GradientUse | None:
    """None where no DistributedDataParallel model ran in the steps. borders: (n, 2) ns, n at least 1."""
    found = gradients_of(trace, borders)
    if found is None:
        return None
    exchanges = max(1, int(found.synchronised.sum()))
    return GradientUse(
        micro_batches=float(found.forwards.mean()),
        synchronised=float(found.synchronised.mean()),
        buckets=float(found.buckets.sum()) / exchanges,
        elements=float(found.elements.sum()) / exchanges,
        search=mean_of_series(found.search),
    )
