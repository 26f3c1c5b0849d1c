"""Files that are given as traces and are none, and what reads or replaces them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from steptime.errors import TraceError, UsageError
from steptime.trace.source import TraceSource

START = 1 << 20
"""Bytes, unpacked, in which a file says what it is."""
LARGEST = 1 << 40


@dataclass(frozen=True, slots=True)
class _Other:
    """ending: of the file's name, or holds: what its first bytes have, all of it. sentence: behind the file's name,
    which it may repeat."""

    slug: str
    sentence: str
    endings: tuple[str, ...] = ()
    holds: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = (b"traceEvents",)


OTHERS = (
    _Other(
        "nsight-report",
        "is a report of Nsight Systems, which only nsys reads: nsys export -t sqlite {file}",
        endings=(".nsys-rep", ".qdrep"),
    ),
    _Other(
        "nsight-report",
        "is a report of Nsight Compute, which only ncu reads: ncu --import {file} --csv > kernels.csv, "
        "then steptime diagnose TRACE --ncu kernels.csv",
        endings=(".ncu-rep",),
    ),
    _Other(
        "counter-table",
        "is what Nsight Compute measured of kernels, and no trace: steptime diagnose TRACE --ncu {file}",
        holds=(rb'"Kernel Name",', rb'"Metric Value"'),
    ),
    _Other(
        "flight-recorder-dump",
        "is a dump of torch's flight recorder and no trace: steptime hang {file} says what hung.",
        holds=(rb"pg_config",),
        lacks=(b"traceEvents", b"distributedInfo"),
    ),
    _Other(
        "memory-snapshot",
        "is a snapshot of torch's allocator and no trace: steptime memory {file} says who owned what.",
        holds=(rb"^\x80", rb"segments", rb"allocated_size"),
    ),
    _Other(
        "execution-trace",
        "is an execution trace of PyTorch, which holds operators with their arguments and no times: give the trace "
        "that torch.profiler wrote of the same job (export_chrome_trace; record_shapes=True keeps the arguments).",
        holds=(rb'"schema"\s*:', rb'"nodes"\s*:', rb'"op_schema"|"rf_id"'),
    ),
    _Other(
        "operator-table",
        "is a table of key_averages(), which sums operators over the whole recording and holds no step: "
        'have the profiler write prof.export_chrome_trace("trace.json.gz") and give that.',
        holds=(rb"Self CPU %", rb"# of Calls"),
    ),
)


def told(file: Path) -> UsageError | None:
    """What to say of a file that is no trace; None where nothing is known of it."""
    start = _start(file)
    for other in OTHERS:
        by_name = bool(other.endings) and file.name.endswith(other.endings)
        by_start = bool(other.holds) and all(re.search(each, start) for each in other.holds)
        if by_name or (by_start and not any(each in start for each in other.lacks)):
            return UsageError(other.slug, f"{file} {other.sentence.format(file=file)}")
    return None


def _start(file: Path) -> bytes:
    """The first bytes, unpacked; none where it cannot be read."""
    begin = bytearray(START)
    try:
        with TraceSource(file, LARGEST) as source:
            return bytes(begin[: source.fill(memoryview(begin))])
    except TraceError:
        return b""
