"""argv: [--trace FILE] [--steps N] SCRIPT ARGUMENTS. Runs a job under torch.profiler, as its tutorials have it: around
the whole job, or around N steps after as many of warm-up. Prints the rows of key_averages() with the largest own CPU
time as JSON, [name, ns, share]; writes the trace where one is wanted."""

import argparse
import json
import runpy
import sys
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, schedule

ROWS = 10

parser = argparse.ArgumentParser()
parser.add_argument("--trace")
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("job", nargs=argparse.REMAINDER)
options = parser.parse_args()
rows = []


def ready(profiler):
    rows.extend(sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total))
    if options.trace:
        profiler.export_chrome_trace(options.trace)


sys.argv = options.job
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as Python itself has it, for the modules of the job
steps = options.steps
when = schedule(wait=0, warmup=steps, active=steps, repeat=1) if steps else None
with profile(activities=[ProfilerActivity.CPU], schedule=when, on_trace_ready=ready) as profiler:
    if steps:
        register_optimizer_step_post_hook(lambda *_: profiler.step())
    runpy.run_path(sys.argv[0], run_name="__main__")
total = sum(row.self_cpu_time_total for row in rows)
print()
print(json.dumps([[row.key, row.self_cpu_time_total * 1e3, row.self_cpu_time_total / total] for row in rows[:ROWS]]))
