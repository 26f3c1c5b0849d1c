"""State when memory runs out: the failed request, and the holders of the memory.

A process that ends with the error is examined at its end, so that the job's exception and traceback stay the same. A
CUDA allocator's state is written when its device is full, before the error is raised and memory is freed.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import re
import sys
import time
from types import FrameType, TracebackType
from typing import Any

import torch

from steptime.probe import sites
from steptime.probe.device import resident_bytes
from steptime.probe.identity import memory_limit
from steptime.probe.memory.living import MOST_OBJECTS, TENSOR, size_of, storage_of, tensors
from steptime.probe.ours import pass_on

ON_HOST = re.compile(r"(?:can't|not enough memory: you) .*?(?:tried to )?allocate (\d+) bytes", re.DOTALL)
"""Message in c10/core/impl/alloc_cpu.cpp."""
ON_DEVICE = re.compile(r"out of memory\. Tried to allocate ([\d.]+) (KiB|MiB|GiB)")
CAPACITY = re.compile(r"total capacity of ([\d.]+) (KiB|MiB|GiB)")
"""Messages in c10/cuda/CUDACachingAllocator.cpp."""
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
GRADIENT = TENSOR.grad
RESERVE = 16 << 20
"""Bytes of untouched address space, freed when memory has run out, so that the examination has some if the process is
at its own limit."""


def _reserved() -> mmap.mmap | None:
    try:
        return mmap.mmap(-1, RESERVE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        pass_on(error)
        return None


class _ExhaustedState:
    """Process-wide state."""

    reserve = _reserved()


def facts(step: int) -> dict[str, Any] | None:
    """Returns the `OutOfMemoryFacts` of the exception that ends this process; None for other ends."""
    error = getattr(sys, "last_value", None)
    found = understood(error)
    if found is None or error is None:
        return None
    if _ExhaustedState.reserve is not None:
        _ExhaustedState.reserve.close()
        _ExhaustedState.reserve = None
    asked, device, limit = found
    return {
        "message": str(error)[:2000],
        "device": device,
        "step": step,
        "held": held(device),
        "asked": asked,
        "resident": resident_bytes(),
        "limit": limit if limit is not None else memory_limit(),
        "site": _site(error.__traceback__),
    }


def understood(error: BaseException | None) -> tuple[int | None, str, int | None] | None:
    """Returns (requested bytes, device, bytes of the device) of an out-of-memory error; None for any other error."""
    if isinstance(error, MemoryError):
        return None, "cpu", None
    if not isinstance(error, RuntimeError):
        return None
    message = str(error)
    on_host = ON_HOST.search(message)
    if on_host is not None:
        return int(on_host[1]), "cpu", None
    on_device = ON_DEVICE.search(message)
    if on_device is not None:
        capacity = CAPACITY.search(message)
        return _bytes(on_device), "cuda", _bytes(capacity) if capacity is not None else None
    return None


def _bytes(found: re.Match[str]) -> int:
    return int(float(found[1]) * UNITS[found[2]])


def held(device: str) -> dict[str, int]:
    """Returns bytes on a kind of device by owner, each storage once. Tensors that only autograd holds are missing,
    since Python does not know them."""
    owners: dict[str, int] = {}
    seen: set[int] = set()
    with torch._C.DisableTorchFunction():  # what tensors of the job's own classes would be asked by
        living = [each for each in tensors() if each.device.type == device]
        parameters = [each for each in living if type(each) is torch.nn.Parameter]
        gradients = [gradient for each in parameters if (gradient := GRADIENT.__get__(each)) is not None]
        owned = {"parameters": parameters, "gradients": gradients, "optimizer state": _states()}
        owned["other tensors"] = living
        for owner, each in ((owner, each) for owner, several in owned.items() for each in several):
            place = storage_of(each)
            if place and place not in seen:
                seen.add(place)
                owners[owner] = owners.get(owner, 0) + size_of(each)
    return owners


def _states() -> list[Any]:
    objects = gc.get_objects()
    if len(objects) > MOST_OBJECTS:
        return []
    found = []
    for each in objects:
        if torch.optim.Optimizer in type(each).__mro__:
            state = each.__dict__.get("state", {})
            slots = [value for slot in list(state.values()) if isinstance(slot, dict) for value in slot.values()]
            found += [value for value in slots if type(value) is torch.Tensor]
    return found


def _site(traceback: TracebackType | None) -> dict[str, Any] | None:
    found = None
    while traceback is not None:
        if sites.whose_frame(traceback.tb_frame) == sites.USER:
            code = traceback.tb_frame.f_code
            found = code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next
    return sites.line_of(found)


FILE = "memory-full.pickle"
"""Name of the snapshot; it is read with the process's other ones (memory-*.pickle)."""
MOST_NANOSECONDS = 5_000_000_000
"""ns spent in all, so that a job which finds its largest batch by running out of memory is not delayed forever."""
MOST_FRAMES = 64


class _FullDeviceState:
    """Process-wide state. path: of the file, "" before `observe_device`; spent: ns so far."""

    path = ""
    process = 0
    spent = 0


def observe_device(folder: str) -> None:
    """Writes the newest out-of-memory state into `folder` from now on. An observer cannot be removed, so each process
    has one, which follows the folder. Does nothing until CUDA is in use."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or not torch.cuda.is_initialized():
        return
    first = not _FullDeviceState.process
    _FullDeviceState.path, _FullDeviceState.process = os.path.join(folder, FILE), os.getpid()
    if first:
        attach(ran_out)


def ran_out(device: int, asked: int, _allocated: int, free: int) -> None:
    """Observer that the allocator calls (torch/csrc/cuda/Module.cpp, THCPModule_attachOutOfMemoryObserver) without its
    lock. An exception here would replace the job's own."""
    start = time.perf_counter_ns()
    if (
        not _FullDeviceState.path
        or os.getpid() != _FullDeviceState.process
        or _FullDeviceState.spent > MOST_NANOSECONDS
    ):
        return
    try:
        snapshot = with_request(torch.cuda.memory._snapshot(), device, asked, free, sys._getframe(1))
        with open(_FullDeviceState.path + ".partial", "wb") as file:
            pickle.dump(snapshot, file)
        os.replace(_FullDeviceState.path + ".partial", _FullDeviceState.path)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: what is raised here would hide the job's own error
        _FullDeviceState.path = ""
        pass_on(error)
    _FullDeviceState.spent += time.perf_counter_ns() - start


def with_request(
    snapshot: dict[str, Any], device: int, asked: int, free: int, frame: FrameType | None
) -> dict[str, Any]:
    """Returns the snapshot with the failed request as its device's last event, as the allocator's history writes it."""
    traces = snapshot.setdefault("device_traces", [])
    traces += [[] for _ in range(device + 1 - len(traces))]
    events = traces[device]
    if not events or events[-1].get("action") != "oom":
        failed = {"action": "oom", "device_free": free, "size": asked, "stream": 0, "frames": frames_of(frame)}
        events.append({**failed, "time_us": time.time_ns() // 1000})
    return snapshot


def frames_of(frame: FrameType | None) -> list[dict[str, Any]]:
    """Returns the Python frames from `frame` outwards, in a snapshot's format."""
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno or 0, "name": code.co_name})
        frame = frame.f_back
    return found
