"""Facts of a job that no account needs and a comparison does: (name, value), for a reader."""

from __future__ import annotations

import re
import shlex

import numpy as np

from steptime.journal import Kind
from steptime.kineto.table import Trace
from steptime.recording.recording import Process, Recording, SettingsFacts
from steptime.report.report import Environment

Facts = tuple[tuple[str, str], ...]

WORKERS = "loader workers"
IN_PROCESS = "0 (read in the training process)"
IN_WORKERS = "worker processes"
_ITERATOR = re.compile(r"^enumerate\(DataLoader\)#_(SingleProcess|MultiProcessing)DataLoaderIter\b")
"""How torch's profiler names the loader's next(): the class of the iterator says whether there are workers."""
_RESIDENT, _ALLOCATED = 1, 2
"""Quantities of MEMORY samples (docs/recording-format.md)."""


def facts_of_process(process: Process) -> Facts:
    """Of a recorded process: its switches, its modules and the changes of a trial that were live in it."""
    roots = ", ".join(
        f"{root.type} of {root.parameters} parameter tensors{', compiled' if root.compiled else ''}"
        for root in process.roots
        if root.parameters
    )
    found = [*_switches(process.settings), ("model", roots), ("changes of a trial", ", ".join(process.facts.changes))]
    return tuple((name, value) for name, value in found if value)


def _switches(settings: SettingsFacts | None) -> list[tuple[str, str]]:
    if settings is None:
        return []
    values: dict[str, object] = {
        "threads in an operator": settings.intra_op_threads,
        "threads between operators": settings.inter_op_threads,
        "usable CPUs": settings.usable_cpus,
        "OMP_NUM_THREADS": settings.omp_num_threads,
        "cudnn.benchmark": settings.cudnn_benchmark,
        "cudnn.deterministic": settings.cudnn_deterministic,
        "float32 matmul precision": settings.float32_matmul_precision,
        "denormals flushed": settings.denormals_flushed or None,
        "autocast": settings.autocast or "off",
        "distributed backend": settings.distributed_backend,
        "debug switches": " ".join(f"{name}={value}" for name, value in settings.debug_switches) or None,
    }
    return [(name, _word(value)) for name, value in values.items() if value is not None]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def facts_of_trace(trace: Trace) -> Facts:
    """Of a bare trace: how its loader reads, as far as names tell, and its devices."""
    found = []
    kinds = {match[1] for match in map(_ITERATOR.match, trace.symbols) if match}
    if kinds:
        told = {"SingleProcess": IN_PROCESS, "MultiProcessing": IN_WORKERS}
        found.append((WORKERS, " and ".join(sorted(told[kind] for kind in kinds))))
    if trace.devices:
        found.append(("devices in the machine", str(len(trace.devices))))
    if trace.backend:
        found.append(("distributed backend", trace.backend))
    if trace.world_size:
        found.append(("world size", str(trace.world_size)))
    return tuple(found)


def peak_bytes(process: Process) -> int | None:
    """The most memory in a process's samples: allocated on its device where it has one, else resident."""
    table = process.intervals
    samples = table.kind == Kind.MEMORY
    for quantity in (_ALLOCATED, _RESIDENT):
        rows = np.flatnonzero(samples & (table.identity == quantity))
        if len(rows):
            return int(table.end[rows].max())
    return None


def environment_of(recording: Recording) -> Environment:
    """Where the job of a recording ran."""
    facts, manifest = recording.processes[0].facts, recording.manifest
    return Environment(
        command=shlex.join(manifest.command),
        host=manifest.host,
        device=facts.device_name or facts.device,
        python=facts.python,
        torch=facts.torch,
        steptime=manifest.steptime,
        ranks=len(recording.processes),
        commit=manifest.commit,
        dirty=manifest.dirty,
        facts=facts_of_process(recording.processes[0]),
    )
