"""Builds traces by hand, in microseconds: events as Kineto writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.trace.reader import read
from steptime.trace.table import Trace

Event = dict[str, Any]
Events = list[Event]
Written = Callable[[Events], Trace]
MAIN, ENGINE, GLOO, DEVICE, STREAM = 10, 11, 12, 0, 7


def happened(event_kind: str, name: str, start: float, end: float, track: tuple[int, int], **args: Any) -> Event:
    """An event of any category."""
    place = {"pid": track[0], "tid": track[1], "ts": start, "dur": end - start}
    return {"ph": "X", "cat": event_kind, "name": name, **place, "args": args}


def operator(name: str, start: float, end: float, thread: int = MAIN, **args: Any) -> Event:
    return happened("cpu_op", name, start, end, (1, thread), **args)


def annotation(name: str, start: float, end: float, thread: int = MAIN) -> Event:
    return happened("user_annotation", name, start, end, (1, thread))


def python(name: str, start: float, end: float, thread: int = MAIN) -> Event:
    return happened("python_function", name, start, end, (1, thread))


def launch(correlation: int, start: float, end: float, thread: int = MAIN) -> Event:
    return called("cudaLaunchKernel", start, end, correlation, thread)


def called(name: str, start: float, end: float, correlation: int = 0, thread: int = MAIN) -> Event:
    return happened("cuda_runtime", name, start, end, (1, thread), correlation=correlation)


def kernel(
    correlation: int, start: float, end: float, name: str = "gemm", stream: int = STREAM, device: int = DEVICE
) -> Event:
    place = {"device": device, "stream": stream}
    return happened("kernel", name, start, end, (device, stream), correlation=correlation, **place)


def copy(
    correlation: int, start: float, end: float, name: str = "Memcpy HtoD (Pageable -> Device)", size: int = 4096
) -> Event:
    place = {"device": DEVICE, "stream": STREAM, "bytes": size}
    return happened("gpu_memcpy", name, start, end, (DEVICE, STREAM), correlation=correlation, **place)


def step(start: float, end: float, number: int = 3) -> Event:
    return annotation(f"ProfilerStep#{number}", start, end)


def write(events: Events, folder: Path) -> Trace:
    """Writes a trace of one device, "Testcard", and reads it back."""
    path = folder / "made.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": "Testcard"}]}))
    return read(path)


def event(number: int = 0, **changed: Any) -> dict[str, Any]:
    """An operator's event, 10 µs after the one before."""
    made = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 77, "tid": 77, "ts": 1000 + 10 * number, "dur": 5,
            "args": {"External id": number}}  # fmt: skip
    return made | changed


def trace_file(path: Path, events: list[dict[str, Any]], **around: Any) -> Path:
    """A file of these events, with what else it says of itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, **around, "traceEvents": events}))
    return path
