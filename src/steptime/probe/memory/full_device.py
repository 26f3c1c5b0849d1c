"""When a CUDA device runs full: the allocator's state is written down at that moment, before the error is raised and
anything is freed. Of what is still alive when the process ends, `exhausted` tells.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from types import FrameType
from typing import Any

import torch

FILE = "memory-full.pickle"
"""Read with the other snapshots of a process (memory-*.pickle)."""
MOST_NANOSECONDS = 5_000_000_000
"""Spent in all: a job that looks for its largest batch by running out of memory is not held up for ever."""
MOST_FRAMES = 64


class _FullDeviceState:
    """Of this process. path: of the file, "" while nobody watches; spent: ns so far."""

    path = ""
    process = 0
    spent = 0


def watch(folder: str) -> None:
    """From now on the newest state in which memory ran out lies in `folder`. An observer cannot be taken away again, so
    there is one for a process, which follows the folder. Does nothing until CUDA is in use."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or not torch.cuda.is_initialized():
        return
    first = not _FullDeviceState.process
    _FullDeviceState.path, _FullDeviceState.process = os.path.join(folder, FILE), os.getpid()
    if first:
        attach(ran_out)


def ran_out(device: int, asked: int, _allocated: int, free: int) -> None:
    """The allocator's observer (torch/csrc/cuda/Module.cpp, THCPModule_attachOutOfMemoryObserver): called without its
    lock. An exception from here would take the place of the job's own."""
    begin = time.perf_counter_ns()
    if (
        not _FullDeviceState.path
        or os.getpid() != _FullDeviceState.process
        or _FullDeviceState.spent > MOST_NANOSECONDS
    ):
        return
    try:
        write(told(torch.cuda.memory._snapshot(), device, asked, free, sys._getframe(1)), _FullDeviceState.path)
    except Exception:  # noqa: BLE001 - the probe's boundary: what is raised here would hide the job's own error
        _FullDeviceState.path = ""
    _FullDeviceState.spent += time.perf_counter_ns() - begin


def told(snapshot: dict[str, Any], device: int, asked: int, free: int, frame: FrameType | None) -> dict[str, Any]:
    """The snapshot with the request that failed as the last event of its device, as the allocator writes it itself
    where its history is on."""
    traces = snapshot.setdefault("device_traces", [])
    traces += [[] for _ in range(device + 1 - len(traces))]
    events = traces[device]
    if not events or events[-1].get("action") != "oom":
        failed = {"action": "oom", "device_free": free, "size": asked, "stream": 0, "frames": frames_of(frame)}
        events.append({**failed, "time_us": time.time_ns() // 1000})
    return snapshot


def frames_of(frame: FrameType | None) -> list[dict[str, Any]]:
    """The Python frames from one outwards, as a snapshot has them."""
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno or 0, "name": code.co_name})
        frame = frame.f_back
    return found


def write(snapshot: dict[str, Any], path: str) -> None:
    """In one piece. Raises OSError."""
    with open(path + ".partial", "wb") as file:
        pickle.dump(snapshot, file)
    os.replace(path + ".partial", path)
