"""Compresses the traces that the profiler has left in a recording."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from isal import igzip

LEVEL = 1
"""isal's levels are 0 to 3; 1 writes Kineto's JSON at a third of a gigabyte a second and better, to a tenth of its
size."""
BLOCK = 1 << 20


def compress_traces(recording: Path) -> list[str]:
    """Turns every process-*/trace-*.json into .json.gz, each in one piece; the plain one goes when the other is
    complete.

    Returns a sentence about those that stayed as they were (no room), or none: they remain readable.
    """
    left = {}
    for trace in sorted(recording.glob("process-*/trace-*.json")):
        problem = _compress(trace)
        if problem:
            left[f"{trace.parent.name}/{trace.name}"] = problem
    if not left:
        return []
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    name, reason = next(iter(left.items()))
    return [f"{name}{more} {'were' if more else 'was'} left uncompressed ({reason})."]


def _compress(trace: Path) -> str:
    partial = trace.with_name(trace.name + ".gz.partial")
    try:
        with trace.open("rb") as plain, igzip.open(partial, "wb", compresslevel=LEVEL) as packed:
            shutil.copyfileobj(plain, packed, BLOCK)
        partial.replace(trace.with_name(trace.name + ".gz"))
        trace.unlink()
    except OSError as error:
        partial.unlink(missing_ok=True)
        return os.strerror(error.errno or 0)
    return ""
