"""The norm of the gradients as rules see it: from the samples of a recording."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Float64
from steptime.findings.case import NormUse
from steptime.journal import Kind
from steptime.recording.recording import IntervalTable
from steptime.timeline.timeline import Steps


def norm_use(table: IntervalTable, steps: Steps) -> NormUse | None:
    """None where nothing was sampled. Warm-up counts: what explodes, explodes early."""
    rows = np.flatnonzero(table.kind == int(Kind.GRADIENT_NORM))
    if not len(rows):
        return None
    number = np.searchsorted(steps.end, table.begin[rows], side="right")
    with np.errstate(invalid="ignore"):  # a damaged file's bits may be those of a signalling NaN
        read = table.end[rows].astype("<i4").view("<f4").astype(np.float64)
    norm = np.where(read >= 0, read, np.inf)
    finite = norm[np.isfinite(norm)]
    lost = int(np.argmax(np.isfinite(norm)[::-1])) if len(finite) else len(norm)
    third = len(finite) // 3
    before, after = (_middle(finite[:third]), _middle(finite[len(finite) - third :])) if third else (0.0, 0.0)
    return NormUse(
        before=before,
        after=after,
        first=int(number[0]),
        last=int(number[-1]),
        samples=len(norm),
        lost=lost,
        lost_since=int(number[len(number) - lost]) if lost else None,
    )


def _middle(values: Float64) -> float:
    """One of the values, as the mean of two may be beyond what a float holds."""
    return float(np.quantile(values, 0.5, method="lower"))
