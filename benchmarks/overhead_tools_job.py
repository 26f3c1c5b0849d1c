"""The job of `overhead_tools.py`: training steps of one size; writes what one took, when they are over.

argv: depth of the model (`overhead_job.py`), steps, file for the CPU ns per step of this process; and "traceml" to be
instrumented as TraceML's README says. With 0 for the depth: prints the one whose step takes as many ms as there are
"steps".
"""

import sys
import time
from pathlib import Path

import torch
from overhead_job import deep_enough, make_step

SETTLED = 1 / 3
"""Of the steps: before that, tools look at the job more closely, and the allocator learns what it needs."""


def main(depth, count, target, instrumented):
    """Takes the steps."""
    torch.set_num_threads(1)
    if not depth:
        print(deep_enough(count * 1e6, use_loader=False)[0])
        return
    model, step = make_step(int(depth), use_loader=False)
    if instrumented:
        import traceml_ai as traceml

        traceml.init(mode="auto")
        bare = step

        def step():
            """Within the context that the README names."""
            with traceml.trace_step(model):
                bare()

    settled = int(count * SETTLED)
    for _ in range(settled):
        step()
    start = time.process_time_ns()
    for _ in range(settled, int(count)):
        step()
    taken = (time.process_time_ns() - start) / (int(count) - settled)
    Path(target).write_text(str(taken), encoding="utf-8")


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], "traceml" in sys.argv)
