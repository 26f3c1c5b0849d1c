"""Runs a script as `__main__`, and keeps when each of its optimizer steps ended: a stopwatch from outside.

    python -m benchmarks.clinic.timed TIMES SECONDS SCRIPT

Ends the script when SECONDS have passed since its first step, or by itself before; TIMES is written then. Of several
ranks the first one keeps the time, and the others end once it has: a rank that ended by itself would break the others'
next exchange. A file next to TIMES says when the script is warm, from where on it may take turns with another.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

LEAST_STEPS, WARM_UP = 16, 3


def main() -> None:
    times, seconds, script = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    from torch.optim.optimizer import register_optimizer_step_post_hook

    ends: dict[int, list[float]] = {}
    is_first = os.environ.get("RANK", "0") == "0"

    def ended(optimizer: Any, *_: object) -> None:
        own = ends.setdefault(id(optimizer), [])
        own.append(time.perf_counter())
        if is_first and len(own) == WARM_UP:
            namespace = Path("/proc/self/ns/pid").stat().st_ino
            times.with_name("warm").write_text(f"{os.getpid()}\n{namespace}\n")
        if is_first and own[-1] - own[0] > seconds and len(own) > LEAST_STEPS:
            keep()
        if times.exists():
            os._exit(0)

    def keep() -> None:
        if is_first and ends:
            times.write_text(json.dumps(max(ends.values(), key=len)))

    register_optimizer_step_post_hook(ended)
    sys.argv = [script]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
    keep()


if __name__ == "__main__":
    main()
