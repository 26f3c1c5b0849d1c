"""What torch's profiler leaves behind on a device, by the time of a launch before and behind it, and how many kernels a
second session sees.

    python benchmarks/device/left_behind.py                  # every arm in a process of its own; a line of JSON each
    python benchmarks/device/left_behind.py two-kept bare    # these arms

An arm is the value of TEARDOWN_CUPTI while a session stops, for each session in turn, and what lies between two.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ARMS: dict[str, tuple[tuple[str, ...], str]] = {
    "bare": ((), ""),
    "one-kept": (("0",), ""),
    "one-down": (("1",), ""),
    "two-kept": (("0", "0"), ""),
    "two-down-at-once": (("1", "1"), ""),
    "two-down-launches-between": (("1", "1"), "launches"),
    "two-kept-then-down": (("0", "1"), ""),
    "history": ((), "history"),
}
LAUNCHES, BLOCKS, IN_SESSION = int(os.environ.get("LAUNCHES", "4000")), 25, 200


def main(arm: str) -> None:
    teardown, between = ARMS[arm]
    os.environ["TEARDOWN_CUPTI"] = "0"
    import torch

    on_device = torch.cuda.is_available()
    vector = torch.ones(64, device="cuda" if on_device else "cpu")

    def synchronize() -> None:
        if on_device:
            torch.cuda.synchronize()

    def block() -> float:
        """ns of a launch."""
        synchronize()
        start = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            vector.add_(1)
        took = (time.perf_counter_ns() - start) / LAUNCHES
        synchronize()
        return took

    def blocks(count: int = BLOCKS) -> list[float]:
        return [block() for _ in range(count)]

    def session(value: str) -> tuple[int, int]:
        """Kernels and calls of the runtime in its trace."""
        activity = torch.profiler.ProfilerActivity
        activities = [activity.CPU, activity.CUDA] if on_device else [activity.CPU]
        profile = torch.profiler.profile(activities=activities, record_shapes=True)
        profile.start()
        for _ in range(IN_SESSION):
            vector.add_(1)
        synchronize()
        os.environ["TEARDOWN_CUPTI"] = value
        profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_bytes())["traceEvents"]
        kinds = [each.get("cat") for each in events]
        return kinds.count("kernel"), kinds.count("cuda_runtime") + kinds.count("cuda_driver")

    blocks(5)
    before, seen = blocks(), []
    for number, value in enumerate(teardown):
        if number and between == "launches":
            block()
            time.sleep(0.1)
        seen.append(session(value))
    if between == "history" and on_device:
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=100000)
        block()
        torch.cuda.memory._record_memory_history(enabled=None)
    at_once, later = blocks(), blocks()
    row = {"arm": arm, "torch": torch.__version__, "kernels": [k for k, _ in seen], "runtime": [r for _, r in seen]}
    for name, times in (("before", before), ("behind", at_once), ("later", later)):
        row |= {f"{name}_ns": round(statistics.median(times), 1), f"{name}_least_ns": round(min(times), 1)}
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        for name in sys.argv[1:] or ARMS:
            done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)
            died = json.dumps({"arm": name, "status": done.returncode, "said": done.stderr[-300:]})
            print(done.stdout.strip() or died, flush=True)
