"""argv: a folder with a trace. Prints the part of a step that the plugin's recommendation is about; without one, the
largest part of its overview."""

import sys
from pathlib import Path

from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator

PARTS = {"data loading": "DataLoader", "communication": "Communication"}
"""What the recommendations speak of."""

(trace,) = Path(sys.argv[1]).glob("*.pt.trace.json")
data = RunProfileData.parse("rank-0", None, str(trace), sys.argv[1])
overview = RunGenerator("rank-0", None, data).generate_run_profile().overview
reported = [part for words, part in PARTS.items() if words in overview["recommendations"]]
(step,) = overview["performance"]
print(reported[0] if reported else max(step["children"], key=lambda part: part["value"])["name"])
