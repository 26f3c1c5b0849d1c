"""argv: a folder with a trace. Prints the name of the largest column of its temporal breakdown."""

import sys

from hta.trace_analysis import TraceAnalysis

breakdown = TraceAnalysis(trace_dir=sys.argv[1]).get_temporal_breakdown(visualize=False)
shares = breakdown[["idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg"]].mean()
print(shares.idxmax())
