"""Kernels that torch.compile generated, and the files that it generated them into.

Inductor launches each Triton kernel under an operator of the kernel's own name, whose arguments say where it comes from
(CachingAutotuner.get_profiler_kwargs in torch/_inductor/runtime/triton_heuristics.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import distinct
from steptime.quantities import SourceLine
from steptime.trace.details import details_of
from steptime.trace.links import UNKNOWN, Links
from steptime.trace.table import EventKind, Trace


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """file, hash: of the generated source, as on the machine of the trace. options: "XBLOCK=2,R0_BLOCK=2048"; warps: of
    a block, 0 where the trace does not say. flops, bytes: of one run as the compiler counts them, None likewise."""

    name: str
    file: str
    hash: str
    backend: str
    options: str = ""
    warps: int = 0
    flops: float | None = None
    bytes: float | None = None

    @property
    def source(self) -> SourceLine:
        """Where the kernel's source begins."""
        return SourceLine(self.file, 1, self.name)


def compiled_kernels(trace: Trace, links: Links) -> dict[str, CompiledKernel]:
    """By name, which the operator and its kernel share; what each was called with first. Empty without such kernels."""
    events = trace.events
    kernels = np.flatnonzero((events.event_kind == EventKind.KERNEL) & (links.operator != UNKNOWN))
    around = links.operator[kernels]
    same = events.name[kernels] == events.name[around]
    first, _ = distinct(events.name[around[same]])
    rows = around[same][first].astype(np.int64)
    found: dict[str, CompiledKernel] = {}
    for row, arguments in zip(rows.tolist(), details_of(trace, rows), strict=True):
        file = arguments.get("kernel_file")
        if not isinstance(file, str) or not file:
            continue
        name, warps = trace.symbols[events.name[row]], arguments.get("num_warps")
        gigabytes = _number(arguments.get("kernel_num_gb"))
        found[name] = CompiledKernel(
            name=name,
            file=file,
            hash=str(arguments.get("kernel_hash", "")),
            backend=str(arguments.get("kernel_backend", "")),
            options=str(arguments.get("kernel_kwargs", "")),
            warps=warps if isinstance(warps, int) else 0,
            flops=_number(arguments.get("kernel_flop")),
            bytes=gigabytes * 1e9 if gigabytes is not None else None,
        )
    return found


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
