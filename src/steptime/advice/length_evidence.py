"""Lengths of batches: what the model is given in each profiled step, and how much of it fills rows up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np

from steptime.advice.evidence import RunUse
from steptime.advice.kernels import shapes_at
from steptime.advice.run_uses import LengthUse
from steptime.analysis.operators import operator_events, step_at
from steptime.analysis.step_context import StepContext
from steptime.analysis.timeline import Phase
from steptime.arrays import Int64
from steptime.intervals import contains, union
from steptime.recording.rule_facts import PaddingFacts
from steptime.trace.links import UNKNOWN
from steptime.trace.table import ABSENT
from steptime.trace.vendors import matching

FEWEST = 4
"""Profiled steps that show whether a step's time follows from the length of its batch."""
FOLLOWS = 0.8
"""Correlation of the two from which on it does."""
FILLS_UP = "aten::pad_sequence"
"""The operator that is given rows of different length and fills them up."""


def length_use(windows: Iterable[StepContext]) -> LengthUse | None:
    """Range of input lengths in the profiled steps, if longer inputs make longer steps; else None. The lengths are
    those in the first operator of forward that differs between steps."""
    found = [(length, spent) for window in windows if not window.stacks for length, spent in _lengths(window)]
    lengths, durations = np.array([length for length, _ in found]), np.array([spent for _, spent in found])
    if len(found) < FEWEST or lengths.min() == lengths.max() or durations.min() == durations.max():
        return None
    if np.corrcoef(lengths, durations)[0, 1] < FOLLOWS:
        return None
    return LengthUse(int(lengths.min()), int(lengths.max()), len(found))


def _lengths(window: StepContext) -> Iterator[tuple[int, float]]:
    """(product of the sizes that differ between the steps, ns) of each step. The first size is that of the batch."""
    trace, bounds = window.trace, window.boundaries
    forward = window.phases.get(Phase.FORWARD, union(bounds[:, 0], bounds[:, 1]))
    chosen = operator_events(trace) & contains(forward, trace.events.start) & (trace.events.shapes != ABSENT)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(trace.events.start[rows], kind="stable")]
    steps = _first_shapes(window, rows)
    for name in steps[0] if steps else ():
        shapes = [step.get(name, ()) for step in steps]
        if len({tuple(map(len, each)) for each in shapes}) != 1:
            continue
        sizes = np.array([[size for shape in each for size in shape[1:]] for each in shapes])
        differ = (sizes != sizes[0]).any(axis=0) if sizes.size else np.zeros(0, np.bool_)
        if differ.any():
            lengths = [prod(dict.fromkeys(row[differ].tolist())) for row in sizes]
            yield from zip(lengths, (bounds[:, 1] - bounds[:, 0]).tolist(), strict=True)
            return


def _first_shapes(window: StepContext, rows: Int64) -> list[dict[str, tuple[tuple[int, ...], ...]]]:
    """Shapes of the first call of each operator in each step, by name in their order."""
    trace = window.trace
    found: list[dict[str, tuple[tuple[int, ...], ...]]] = [{} for _ in range(len(window))]
    for row, step in zip(rows.tolist(), step_at(window.boundaries, trace.events.start[rows]).tolist(), strict=True):
        if step != UNKNOWN:
            found[step].setdefault(trace.symbols[trace.events.name[row]], shapes_at(trace, row))
    return found


def padding_use(windows: Iterable[StepContext], runs: Iterable[RunUse]) -> PaddingFacts | None:
    """Padding of batches, from the rows that pad_sequence gets in the profiled steps, with its line; None without
    it."""
    shares: dict[tuple[int, int], float] = {}
    for number, window in enumerate(windows):
        trace = window.trace
        rows = np.flatnonzero(matching(trace, FILLS_UP.__eq__) & (trace.events.shapes != ABSENT))
        for row, step in zip(rows.tolist(), step_at(window.boundaries, trace.events.start[rows]).tolist(), strict=True):
            lengths = [shape[0] for shape in shapes_at(trace, row) if shape]
            if step != UNKNOWN and len(lengths) > 1 and max(lengths):
                shares.setdefault((number, step), 1 - sum(lengths) / (len(lengths) * max(lengths)))
    site = next((run.source for run in runs if run.name == FILLS_UP and not run.whole), None)
    return PaddingFacts(float(np.mean([*shares.values()])), len(shares), site=site) if shares else None
