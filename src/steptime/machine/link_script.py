"""Measures what processes of this machine exchange at best, with the user's own torch. Run by path with the user's
interpreter: no part of steptime is imported here. Answers with one JSON object on stdout.

    python link_script.py BACKEND RANKS

All-reduces of one large tensor, one after another. The best is the upper bound; the median shows how disturbed it was.
Bus bandwidth as NCCL-tests defines it: 2(n-1)/n of the bytes over the time (github.com/NVIDIA/nccl-tests,
doc/PERFORMANCE.md). Nothing listens beyond the loopback device. The answer has the fields of `machine.Link`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

BYTES = {"gloo": 64 * 2**20, "nccl": 256 * 2**20}
"""Bytes of the tensor: large enough that latency is negligible."""
WARM_UP, TIMED = 2, 12
PATIENCE = timedelta(seconds=20)
"""Most time for a collective, so that no process waits forever for a failed one."""
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def main() -> None:
    backend, ranks = sys.argv[1], int(sys.argv[2])
    os.environ.update(LOOPBACK)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(1, ranks):
            child = os.fork()  # nothing of torch has started a thread yet
            if not child:
                try:
                    exchange(backend, rank, ranks, folder)
                finally:
                    os._exit(0)  # without what it inherited: its parent's files, exit handlers
            children.append(child)
        times = exchange(backend, 0, ranks, folder)
        for child in children:
            os.waitpid(child, 0)
    rates = [BYTES[backend] * 2 * (ranks - 1) / ranks / seconds for seconds in times]
    best, usual = max(rates), statistics.median(rates)
    rate = {"value": best, "low": usual, "high": best, "samples": len(rates), "unit": "B/s"}
    print(json.dumps({"backend": backend, "ranks": ranks, "rate": rate}), flush=True)


def exchange(backend: str, rank: int, ranks: int, folder: str) -> list[float]:
    """Exchanges tensors with the other ranks; returns the seconds of each all-reduce on this rank."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = (Path(folder) / "store").as_uri()
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    tensor = torch.zeros(BYTES[backend] // 4, device=device)
    times = []
    for _ in range(WARM_UP + TIMED):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    dist.destroy_process_group()
    return times[WARM_UP:]


if __name__ == "__main__":
    main()
