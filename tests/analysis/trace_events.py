"""Traces made by hand, for tests: events with starts and ends in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.what_if.what_if import Replay, rerun
from steptime.trace.reader import read
from steptime.trace.table import Trace

Event = dict[str, Any]
MAIN, ENGINE, DEVICE, STREAM = 10, 11, 0, 7


def happened(event_kind: str, name: str, start: float, end: float, track: tuple[int, int], **args: Any) -> Event:
    """An event of a process and a thread."""
    place = {"pid": track[0], "tid": track[1], "ts": start, "dur": end - start}
    return {"ph": "X", "cat": event_kind, "name": name, **place, "args": args}


def operator(name: str, start: float, end: float, thread: int = MAIN, **args: Any) -> Event:
    """A dispatched operator."""
    return happened("cpu_op", name, start, end, (1, thread), **args)


def annotation(name: str, start: float, end: float, thread: int = MAIN) -> Event:
    """A range that the user or torch named."""
    return happened("user_annotation", name, start, end, (1, thread))


def step(start: float, end: float, number: int = 3) -> Event:
    """A step, as the profiler's schedule names it."""
    return annotation(f"ProfilerStep#{number}", start, end)


def called(name: str, start: float, end: float, correlation: int = 0, thread: int = MAIN) -> Event:
    """A call of the CUDA runtime."""
    return happened("cuda_runtime", name, start, end, (1, thread), correlation=correlation)


def kernel(correlation: int, start: float, end: float, name: str = "gemm", stream: int = STREAM) -> Event:
    """A kernel that the call with the same correlation launched."""
    return happened("kernel", name, start, end, (DEVICE, stream), correlation=correlation, device=0, stream=stream)


def copy(correlation: int, start: float, end: float, name: str, stream: int = STREAM) -> Event:
    """A copy of the device, alike."""
    return happened("gpu_memcpy", name, start, end, (DEVICE, stream), correlation=correlation, device=0, stream=stream)


def written(path: Path, events: list[Event]) -> Trace:
    """Writes events and reads them back."""
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": "Testcard"}]}))
    return read(path)


def replayed(trace: Trace, **known: Any) -> Replay:
    """The replay of the steps of a trace that are found without help."""
    steps = step_context(trace, steps_of(trace))
    made = rerun(steps, breakdown_of(steps), **known)
    assert made is not None
    return made
