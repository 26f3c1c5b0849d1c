"""argv: [--trace FILE] SCRIPT ARGUMENTS. Runs a job under torch.profiler, as its tutorial has it, and prints the rows
of key_averages() with the largest own CPU time as JSON, [name, ns, share]; or writes the trace of the job."""

import json
import runpy
import sys
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

ROWS = 10

words = sys.argv[1:]
trace = words[1] if words[0] == "--trace" else None
sys.argv = words[2:] if trace else words
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as Python itself has it, for the modules of the job
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    runpy.run_path(sys.argv[0], run_name="__main__")
if trace:
    profiler.export_chrome_trace(trace)
rows = sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total)
total = sum(row.self_cpu_time_total for row in rows)
print()
print(json.dumps([[row.key, row.self_cpu_time_total * 1e3, row.self_cpu_time_total / total] for row in rows[:ROWS]]))
