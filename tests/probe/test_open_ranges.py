"""A range of the job's that is open when one window of the profiler ends, and closed in the next, alters nobody's
memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from preloading import python

torch = pytest.importorskip("torch")

from steptime.probe.profiling import OpenRanges  # noqa: E402

JOB = """
import ctypes, gc, os, sys, torch
from steptime.probe.profiling import ProfilerWindow
from steptime.probe.recorder import Recorder

recorder = Recorder(print)
recorder.open(sys.argv[1])
ranges = [torch.profiler.record_function(str(number)) for number in range(1024 * 4)]
first, second = ProfilerWindow(recorder, 1, stacks=False), ProfilerWindow(recorder, 2, stacks=False)
first.start()
for each in ranges:
    each.__enter__()
first.stop(1)
gc.collect()
library = ctypes.CDLL(None)
library.calloc.restype, library.calloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
blocks = [library.calloc(1, 1008) for _ in range(40_000)]  # takes what the first window has freed
second.start()
for each in reversed(ranges):
    each.__exit__(None, None, None)
print(sum(any(ctypes.string_at(block, 1008)) for block in blocks), flush=True)
os._exit(0)  # the heap may be broken
"""


def test_a_range_that_outlives_its_window_writes_into_nobodys_memory(tmp_path: Path) -> None:
    run = subprocess.run([python(), "-c", JOB, tmp_path], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "0\n"), run.stderr


def test_what_opens_ranges_is_as_it_was_after_a_window() -> None:
    packet = torch.ops.profiler._record_function_enter_new
    original, number = packet._op, hash(packet)
    ranges = OpenRanges()
    ranges.start()
    assert hash(packet) == number
    with torch.profiler.record_function("a"):
        torch.profiler.record_function("b").__enter__()
        ranges.end()
    assert packet._op is original
