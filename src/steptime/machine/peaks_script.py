"""Measures a machine's peaks with the user's own torch. Run by path with the user's interpreter: no part of steptime
is imported here. Answers with one JSON object on stdout.

    python peaks_script.py DEVICE THREADS BRIEF

THREADS: of torch in an operator, 0 for its default. BRIEF: 1 for about a second in all, 0 for three. Each upper bound
is timed in blocks for a share of a second, after a warm-up. The best block is the upper bound, because
what disturbs a block can only slow it; the median block, the other end of its interval, tells how much this machine was
disturbed. The answer has the fields of `machine.Machine`.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

SECONDS = 0.4
"""Seconds for one peak. All peaks of a device take less than about three seconds."""
BRIEF = 0.25
"""Fraction of the seconds, rounds and batches in a brief measurement: a block is 10 ms, so the best of five or more."""
FORMATS = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_ORDER = 1024
"""Order of the square matrices: large enough to reach the upper bound, small enough for many blocks (2 GFLOP)."""
CUDA_ORDER = 8192
COPY_BYTES = {"cpu": 256 * 2**20, "cuda": 2**30}
"""Bytes of the copied tensor: more than any cache has."""
UPDATE_BYTES = tuple(2**power for power in (20, 22, 24, 26, 28))
"""Total bytes of the two tensors in an in-place update: from a core's own cache to memory. The state of a model and its
optimizer is often in a last-level cache, which is two to four times as fast as memory."""
TINY_OPERATORS = 1000
BLOCK_SECONDS = 0.01
"""Duration of a block, seconds. The wait for a device costs some 20 µs, a fifth of a percent of this."""
ROUNDS, ROUND_SECONDS = 5, 0.1
"""Rounds, each first with one process, then with all at once. They alternate, because a virtual machine's speed
varies."""
WORK = """
import sys, time
print(flush=True)
sys.stdin.readline()
start = now = time.perf_counter()
done, number, end = 0, 1, start + float(sys.argv[1])
while now < end:
    for _ in range(1000):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    done, now = done + 1, time.perf_counter()
print(done / (now - start), flush=True)
"""
"""Program that acts as a loader's worker: a Python process."""
BATCHES, BATCH_ITEMS, ITEM_VALUES = 60, 32, 512
HANDOVER_SECONDS = 0.005
"""Seconds between two batches, so that the next one is ready when it is asked for."""
PATIENCE_SECONDS = 20
"""Most seconds for a first batch: a worker that never answers must not stop the measurement."""
Peak = dict[str, Any]
"""Fields of an `Estimate`."""


def main() -> None:
    device, threads, brief = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
    if threads:
        torch.set_num_threads(threads)
    if brief:
        shorten()
    with torch.inference_mode():
        print(json.dumps(measure(device)))


def shorten() -> None:
    """Makes all later measurements brief."""
    global SECONDS, ROUNDS, ROUND_SECONDS, BATCHES
    SECONDS, ROUNDS, ROUND_SECONDS, BATCHES = BRIEF * SECONDS, 2, ROUND_SECONDS / 2, BATCHES // 3


def measure(device: str) -> dict[str, Any]:
    """Measures all peaks of one device; leaves out dtypes without a matmul in torch."""
    found: dict[str, Any] = {
        "device": device,
        "measured": True,
        "source": "measured",
        "name": torch.cuda.get_device_name() if device == "cuda" else "",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "copy": copy_rate(device),
        "updates": [update_rate(size) for size in UPDATE_BYTES] if device == "cpu" else [],
        "dispatch": tiny_operator("cpu"),
        "profiler": profiled_event(),
        "launch": tiny_operator(device) if device != "cpu" else None,
        "together": together(),
        "handover": handover(),
    }
    rates = {name: matrix_rate(device, name, dtype) for name, dtype in FORMATS.items()}
    return {**found, "matrix": [{"name": name, "rate": each} for name, each in rates.items() if each is not None]}


def matrix_rate(device: str, name: str, dtype: torch.dtype) -> Peak | None:
    """Rate of a square matmul, FLOP/s; None if the device or this build of torch has no such matmul."""
    if name == "tf32" and (device != "cuda" or torch.version.hip or torch.cuda.get_device_capability()[0] < 8):
        return None  # NVIDIA's devices have it from compute capability 8 on
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        order = order_for(device, dtype)
        times = time_blocks(device, product(device, dtype, order))
    except RuntimeError:  # not implemented for this format on this device, or out of memory
        return None
    return rate([2 * order**3 / seconds for seconds in times], "FLOP/s")


def product(device: str, dtype: torch.dtype, order: int) -> Callable[[], object]:
    left, right = (torch.randn(order, order, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def order_for(device: str, dtype: torch.dtype) -> int:
    """Order of the matrices, smaller if memory is short, or if a large matmul would take seconds (emulated dtypes)."""
    if device == "cpu" and dtype is torch.float32:
        return CPU_ORDER
    if device == "cuda":
        return CUDA_ORDER if torch.cuda.mem_get_info()[0] > 4 * 2**30 else CUDA_ORDER // 4
    small = product(device, dtype, CPU_ORDER // 4)
    best = min(timed(device, small, 1, SECONDS / 8))
    return CPU_ORDER if best * 4**3 < SECONDS else CPU_ORDER // 4


def copy_rate(device: str) -> Peak:
    """Rate of a copy, bytes read plus bytes written per second."""
    size = COPY_BYTES.get(device, 2**28)
    if device == "cuda":
        size = min(size, torch.cuda.mem_get_info()[0] // 8)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    times = time_blocks(device, lambda: target.copy_(source))
    return rate([2 * size / seconds for seconds in times], "B/s")


def update_rate(size: int) -> dict[str, Any]:
    """Rate of an in-place update on a CPU, bytes read plus written per second, for tensors of a total size in bytes.
    Two tensors are read and one is written: like an optimizer's step, it only writes what it has read."""
    left, right = torch.zeros(size // 8), torch.zeros(size // 8)
    times = time_blocks("cpu", lambda: left.add_(right), 1 / 4)
    return {"size": size, "rate": rate([3 * size / 2 / seconds for seconds in times], "B/s")}


def tiny_operator(device: str) -> Peak:
    """CPU time of one addition of two numbers, ns; on a device, including its launch."""
    left, right = torch.ones(1, device=device), torch.ones(1, device=device)

    def additions() -> None:
        for _ in range(TINY_OPERATORS):
            torch.add(left, right)

    return cost([seconds / TINY_OPERATORS for seconds in time_blocks(device, additions)])


def profiled_event() -> Peak | None:
    """Time that the profiler adds to one addition of two numbers, with shapes, ns; None without a profiler."""
    left, right = torch.ones(1), torch.ones(1)

    def additions() -> float:
        start = time.perf_counter()
        for _ in range(TINY_OPERATORS):
            torch.add(left, right)
        return (time.perf_counter() - start) / TINY_OPERATORS

    times: list[float] = []
    try:
        for _ in range(ROUNDS):
            alone = min(additions() for _ in range(ROUNDS))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True):
                times.append(max(0.0, min(additions() for _ in range(ROUNDS)) - alone))
    except (RuntimeError, AttributeError):  # a build of torch without Kineto
        return None
    return cost(times)


def together() -> Peak | None:
    """Throughput of all usable CPUs together, in CPUs that work alone. Two hyperthreads of a core do less than two
    CPUs, and a virtual machine does not show which CPUs they are. None if processes cannot be started."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if usable == 1:
        return rate([1.0], "CPUs")
    try:
        rounds = [(at_work(1)[0], sum(at_work(usable))) for _ in range(ROUNDS)]
    except (OSError, ValueError):  # no more processes are allowed, or one ended without an answer
        return None
    return rate([min(all_of_them / alone, usable) for alone, all_of_them in rounds], "CPUs")


def at_work(count: int) -> list[float]:
    """Speed of each of `count` processes that compute at the same time."""
    command = [sys.executable, "-I", "-S", "-c", WORK, str(ROUND_SECONDS)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    workers: list[subprocess.Popen[bytes]] = []
    try:
        workers.extend(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, bufsize=0) for _ in range(count)
        )
        channels = [(worker.stdin, worker.stdout) for worker in workers if worker.stdin and worker.stdout]
        for _, output in channels:
            output.readline()  # it has started
        for start, _ in channels:
            start.write(b"\n")
        return [float(output.readline()) for _, output in channels]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


class Items:
    """Dataset whose items cost nothing: a tensor and a number, as in most datasets."""

    def __len__(self) -> int:
        return BATCHES * BATCH_ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(ITEM_VALUES), index


def handover() -> Peak | None:
    """Time to receive a ready batch from a loader's worker (queue, shared memory, rebuilding its tensors), ns. None if
    workers cannot be forked, or if the machine has too little shared memory for them."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return None
    loader = DataLoader(Items(), BATCH_ITEMS, num_workers=1, multiprocessing_context="fork", timeout=PATIENCE_SECONDS)
    times: list[float] = []
    try:
        batches = iter(loader)
        for _ in range(BATCHES):
            start = time.perf_counter()
            next(batches)
            times.append(time.perf_counter() - start)
            while time.perf_counter() < start + HANDOVER_SECONDS:  # a CPU that sleeps wakes up slowly
                pass
    except (OSError, RuntimeError):
        return None
    return cost(times[BATCHES // 4 :])


def time_blocks(device: str, work: Callable[[], object], share: float = 1.0) -> list[float]:
    """Seconds of one call of `work` in each block. share: fraction of a peak's usual time. A block is long compared
    with the device wait at its end."""
    seconds = share * SECONDS
    warm_up = timed(device, work, 1, seconds / 4)  # clocks rise, libraries choose their kernels
    repeats = math.ceil(BLOCK_SECONDS / min(warm_up))
    return timed(device, work, repeats, seconds)


def timed(device: str, work: Callable[[], object], repeats: int, seconds: float) -> list[float]:
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize()
        times.append((time.perf_counter() - start) / repeats)
    return times


def rate(values: list[float], unit: str) -> Peak:
    """Peak rate: the best block, with an interval down to the median block."""
    best = max(values)
    return {"value": best, "low": statistics.median(values), "high": best, "samples": len(values), "unit": unit}


def cost(seconds: list[float]) -> Peak:
    """Least time: the quickest block in ns, with an interval up to the median block."""
    best, usual = min(seconds) * 1e9, statistics.median(seconds) * 1e9
    return {"value": best, "low": best, "high": usual, "samples": len(seconds)}


if __name__ == "__main__":
    main()
