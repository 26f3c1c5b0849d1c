"""Operators summed over the steps: how often, how long, what bounds them, which line calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int32, Int64
from steptime.hardware.machine import Machine
from steptime.intervals import Intervals
from steptime.kineto.table import Trace
from steptime.ledger.operator_calls import OperatorCalls, operator_calls
from steptime.ledger.operator_work import worked
from steptime.quantities import SourceLine
from steptime.timeline.timeline import Phase
from steptime.work.bounds import bound_of
from steptime.work.calls import Modelled


@dataclass(frozen=True, slots=True)
class OperatorTotal:
    """An operator over all steps, per step. duration: ns (on an accelerator, of the kernels that it launched; on a CPU,
    inside it, operators within it excluded). bound: "compute", "memory", "latency" (its work takes less time at the
    machine's ceilings than dispatching it) or "unmodelled". flops, bytes: None where a call has no model."""

    name: str
    calls: float
    duration: float
    bound: str
    phase: str = ""
    flops: float | None = None
    bytes: float | None = None
    source: SourceLine | None = None


def total(
    trace: Trace,
    borders: Int64,
    machine: Machine | None = None,
    *,
    phase_ranges: Mapping[Phase, Intervals] | None = None,
    training_thread: int | None = None,
    sources: Mapping[str, SourceLine] | None = None,
) -> tuple[OperatorTotal, ...]:
    """The operators that did the work of the steps, the longest first.

    borders: (n, 2) ns on the trace's clock, as the host sees the steps. machine: whose ceilings decide `bound`.
    sources: lines by operator name, as `source_lines.sources_of` finds them in a trace with stacks.
    """
    if not len(borders):
        return ()
    calls = operator_calls(trace, borders, phase_ranges or {}, training_thread)
    modelled = worked(trace, calls)
    totals = [
        _summed(trace, calls, modelled, rows, machine, len(borders), (sources or {}).get(trace.symbols[name]))
        for name, rows in _grouped(trace.events.name[calls.rows])
    ]
    return tuple(sorted(totals, key=lambda each: (-each.duration, each.name)))


def _summed(
    trace: Trace,
    calls: OperatorCalls,
    modelled: Modelled,
    chosen: Int64,
    machine: Machine | None,
    steps: int,
    source: SourceLine | None,
) -> OperatorTotal:
    """One operator; `chosen`: positions in `calls`."""
    rows, duration = calls.rows[chosen], calls.duration[chosen]
    kinds, kind, counts = np.unique(modelled.kind[chosen], return_inverse=True, return_counts=True)
    works = [modelled.works[each] for each in kinds.tolist()]
    spent = np.bincount(kind.reshape(-1), duration, len(kinds))
    return OperatorTotal(
        name=trace.symbols[trace.events.name[rows[0]]],
        calls=len(rows) / steps,
        duration=float(duration.sum()) / steps,
        bound=_heaviest([bound_of(work, machine) for work in works], spent.tolist()),
        phase=Phase(int(np.bincount(calls.phase[chosen], duration).argmax())).name.lower(),
        flops=_per_step([work.flops if work else None for work in works], counts.tolist(), steps),
        bytes=_per_step([work.bytes if work else None for work in works], counts.tolist(), steps),
        source=source,
    )


def _per_step(amounts: list[float | None], counts: list[int], steps: int) -> float | None:
    """The sum over all calls; None when one of them is not known."""
    known = [amount * count for amount, count in zip(amounts, counts, strict=True) if amount is not None]
    return sum(known) / steps if len(known) == len(amounts) else None


def _heaviest(labels: list[str], weights: list[float]) -> str:
    """The label with the largest sum of weights."""
    sums: dict[str, float] = {}
    for label, weight in zip(labels, weights, strict=True):
        sums[label] = sums.get(label, 0.0) + weight
    return max(sums, key=lambda label: sums[label])


def _grouped(keys: Int32) -> list[tuple[int, Int64]]:
    """(key, positions) for each distinct key."""
    order = np.argsort(keys, kind="stable")
    distinct, heads = np.unique(keys[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(order, heads[1:]), strict=True)) if len(keys) else []
