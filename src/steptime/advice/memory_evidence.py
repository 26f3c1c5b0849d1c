"""What rules are told of memory: from the samples of a recording, and from who keeps what."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.advice.evidence import Case, KeeperUse, MachineUse, MemoryUse
from steptime.analysis.memory_samples import ALLOCATED, RESERVED, RESIDENT, RETRIES, Growth, growths, samples_of
from steptime.analysis.timeline import Timeline
from steptime.recording.recording import LeakFacts, Process


def memory_rate(machine: MachineUse | None, size: float) -> float | None:
    """B/s, read and written, of an update in place that goes through so many bytes: as measured for the next larger
    size, or the largest; None where that was not measured (an accelerator, an earlier version's recording)."""
    if machine is None or not machine.updates:
        return None
    return next((rate for each, rate in machine.updates if each >= size), machine.updates[-1][1])


SLOTS = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Adagrad": 1, "RMSprop": 1,
         "Rprop": 2, "Lion": 1}  # fmt: skip
"""Tensors of a parameter's size that torch's optimisers keep for it by default."""
ELEMENT = 4
"""Bytes of float32, in which they are kept."""


@dataclass(frozen=True, slots=True)
class _Peaks:
    held: int
    allocated: int | None
    retries: float | None


def with_memory(case: Case, process: Process, timeline: Timeline) -> Case:
    """The case with its memory, where any was sampled."""
    peaks = _peaks(process, timeline)
    if peaks is None:
        return case
    growth = _growth(growths(process, timeline))
    capacity = process.settings.memory_limit if process.settings is not None else None
    use = MemoryUse(
        device=process.facts.device,
        peak=peaks.held,
        capacity=capacity,
        allocated_peak=peaks.allocated,
        retries=peaks.retries,
        growth=growth.per_step if growth is not None else None,
        grows=growth.leaks if growth is not None else False,
        grown=growth.total if growth is not None else 0,
        optimizer_state=sum(SLOTS.get(each.type, 0) * ELEMENT * each.elements for each in process.optimizers),
        keepers=tuple(map(_keeper, process.leaks)),
    )
    recompute = case.recompute
    if recompute is not None and capacity:
        recompute = replace(recompute, memory_share=min(1.0, peaks.held / capacity))
    return replace(case, memory=use, recompute=recompute)


def _peaks(process: Process, timeline: Timeline) -> _Peaks | None:
    """The most that was held in the steps: reserved on a device, resident on a CPU."""
    _, reserved = samples_of(process, RESERVED)
    _, allocated = samples_of(process, ALLOCATED)
    if len(reserved):
        return _Peaks(int(reserved.max()), int(allocated.max(initial=0)) or None, _retries(process, timeline))
    _, resident = samples_of(process, RESIDENT)
    return _Peaks(int(resident.max()), None, None) if len(resident) else None


def _retries(process: Process, timeline: Timeline) -> float:
    """Retries of the allocator per steady step."""
    times, counts = samples_of(process, RETRIES)
    steps = timeline.steps
    steady = steps.begin[~steps.warm_up]
    if not len(steady) or len(counts) < 2:
        return 0.0
    late = counts[times >= steady[0]]
    return float(late[-1] - late[0]) / len(steady) if len(late) > 1 else 0.0


def _growth(found: tuple[Growth, ...]) -> Growth | None:
    """The one that matters: what tensors hold on a device, else the process."""
    ranked = sorted(found, key=lambda growth: ("allocated", "resident", "reserved").index(growth.memory))
    return next((each for each in ranked if each.leaks), ranked[0] if ranked else None)


def _keeper(leak: LeakFacts) -> KeeperUse:
    graph = bool(leak.graphs or leak.nodes)
    return KeeperUse(leak.kind, leak.name, float(np.round(leak.tensors, 2)), leak.bytes, graph, leak.site)
