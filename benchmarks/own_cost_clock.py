"""Runs a script (argv: its file and arguments) in a process of its own, in which the process's CPU clock stands for the
host's, for `own_cost.py`: the probe takes its clock from `time` when torch is imported. Prints the CPU seconds of that
process, the interpreter's end included.
"""

import os
import runpy
import subprocess
import sys
import time

INNER = "--inner"


def outer(words):
    """The script in a process, and what that has taken."""
    child = subprocess.Popen([sys.executable, __file__, INNER, *words])
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    print(used.ru_utime + used.ru_stime)
    sys.exit(status != 0)


def inner(words):
    """The script itself."""
    time.perf_counter_ns = time.process_time_ns
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == INNER:
        inner(sys.argv[2:])
    else:
        outer(sys.argv[1:])
