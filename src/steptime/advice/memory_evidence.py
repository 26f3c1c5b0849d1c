"""Evidence about memory: from the samples of a recording, and the holders of leaked tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import Case
from steptime.advice.run_uses import HolderUse, MemoryUse
from steptime.analysis.memory_samples import (
    ALLOCATED_PEAK,
    RESERVED,
    RESERVED_PEAK,
    RESIDENT,
    RETRIES,
    growths,
    samples_of,
)
from steptime.analysis.timeline import Timeline
from steptime.recording.recording import LeakFacts, Process


def memory_rate(machine: MachineUse | None, size: float) -> float | None:
    """Rate of an in-place update over `size` bytes, B/s read and written, as measured for the next larger size or the
    largest. None if not measured (an accelerator, an earlier version's recording)."""
    if machine is None or not machine.updates:
        return None
    return next((rate for each, rate in machine.updates if each >= size), machine.updates[-1][1])


FREE = 0.5
"""Fraction of a device's memory that must be free for a batch twice as large."""


def has_room(memory: MemoryUse) -> bool:
    """True if a batch of twice the size fits into the memory of a device."""
    return memory.device != "cpu" and memory.capacity is not None and 0 < memory.peak <= FREE * memory.capacity


SLOTS = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Adagrad": 1, "RMSprop": 1,
         "Rprop": 2, "Lion": 1}  # fmt: skip
"""Number of tensors of a parameter's size that torch's optimizers keep for it by default."""
ELEMENT = 4
"""Bytes of a float32 element, the dtype of these tensors."""
RANKING = ("allocated", "resident", "reserved")
"""Kinds of memory by how much their growth proves, most first."""


def with_memory(case: Case, process: Process, timeline: Timeline) -> Case:
    """Case with its memory, if any was sampled. The peak is that of reserved memory on a device, else of resident
    memory. The growth that matters is that of tensors on a device, else of the process."""
    needed, most, reserved, resident = (
        samples_of(process, kind)[1] for kind in (ALLOCATED_PEAK, RESERVED_PEAK, RESERVED, RESIDENT)
    )
    on_device = len(reserved) > 0
    held = (most if len(most) else reserved) if on_device else resident
    if not len(held):
        return case
    peak = int(held.max())
    capacity = process.settings.memory_limit if process.settings is not None else None
    ranked = sorted(growths(process, timeline), key=lambda each: RANKING.index(each.memory))
    growth = next((each for each in ranked if each.leaks), ranked[0] if ranked else None)
    use = MemoryUse(
        device=process.facts.device,
        peak=peak,
        capacity=capacity,
        allocated_peak=int(needed.max(initial=0)) or None if on_device else None,
        retries=_retries(process, timeline) if on_device else None,
        growth=growth.per_step if growth is not None else None,
        grows=growth.leaks if growth is not None else False,
        grown=growth.total if growth is not None else 0,
        optimizer_state=sum(SLOTS.get(each.type, 0) * ELEMENT * each.elements for each in process.optimizers),
        holders=_holders(process),
    )
    recompute = case.recompute
    if recompute is not None and capacity:
        recompute = replace(recompute, memory_share=min(1.0, peak / capacity))
    return replace(case, memory=use, recompute=recompute)


def _retries(process: Process, timeline: Timeline) -> float:
    """Retries of the allocator per steady step."""
    times, counts = samples_of(process, RETRIES)
    steps = timeline.steps
    steady = steps.start[~steps.warm_up]
    if not len(steady) or len(counts) < 2:
        return 0.0
    late = counts[times >= steady[0]]
    return float(late[-1] - late[0]) / len(steady) if len(late) > 1 else 0.0


def _holders(process: Process) -> tuple[HolderUse, ...]:
    """Holders of tensors, and then the containers that grow by anything else."""
    containers = {
        each.name: HolderUse(each.kind, each.name, 0.0, 0.0, source=each.site, entries=each.entries, most=each.most)
        for each in process.growing
    }
    kept = [_holder(leak, containers.pop(leak.name, None)) for leak in process.leaks]
    return (*kept, *containers.values())


def _holder(leak: LeakFacts, longer: HolderUse | None) -> HolderUse:
    """longer: the same, as a container that becomes longer."""
    graph, tensors = bool(leak.graphs or leak.nodes), float(np.round(leak.tensors, 3))
    found = HolderUse(leak.kind, leak.name, tensors, leak.bytes, graph, leak.site)
    return replace(found, entries=longer.entries, most=longer.most) if longer is not None else found
