"""One measurement of trace_loading.py, in a process of its own that imports no more than it must.

    python -m benchmarks.trace_loading_job WHAT TRACE

Prints, as its last line, CPU and wall seconds of the action alone, its peak memory, and whose version it was.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THEIRS = ("parser", "TraceAnalysis()")


def measure(what: str, path: Path) -> dict[str, Any]:
    """CPU and wall seconds, and peak memory, of one action in this process."""
    action, version = prepared(what, path)
    wall, cpu = time.perf_counter(), cpu_seconds()
    events = action()
    spent = {"wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu}
    return {**spent, "events": events, "peak": peak_memory(), "version": version}


def prepared(what: str, path: Path) -> tuple[Callable[[], int], str]:
    """What to measure, its imports done, and whose version it is."""
    if what in THEIRS:
        return prepared_theirs(what, path)
    from steptime import __version__
    from steptime.trace.reader import read

    version, limit = f"steptime {__version__}", 10**11
    if what == "nothing":
        return lambda: 0, version
    if what == "read":
        return lambda: len(read(path, max_size=limit).events), version
    from steptime.trace.cache import read_remembered

    if what == "second look":
        return lambda: len(read_remembered(path, max_size=limit).events), version
    from steptime.diagnosis import diagnose_paths

    if what == "diagnose":  # the first look, which remembers
        forget()
    return lambda: len(diagnose_paths([str(path)], max_size=limit).processes), version


def forget() -> None:
    """Empties the benchmark's own cache."""
    for entry in (Path(os.environ["STEPTIME_CACHE_DIR"]) / "traces").glob("*"):
        entry.unlink()


def prepared_theirs(what: str, path: Path) -> tuple[Callable[[], int], str]:
    """HTA's and traceinsight's functions have the same names."""
    import importlib.metadata
    import logging

    logging.disable(logging.CRITICAL)
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig
    from hta.trace_analysis import TraceAnalysis

    versions = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    name = next(name for name in ("traceinsight", "HolisticTraceAnalysis") if name in versions)
    settings = ParserConfig.get_default_cfg()
    if what == "parser":
        return lambda: len(parse_trace_dataframe(str(path), settings)[1]), f"{name} {versions[name]}"
    return lambda: len(TraceAnalysis(trace_dir=str(path.parent)).t.traces[0]), f"{name} {versions[name]}"


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


def peak_memory() -> int:
    """Bytes. Not getrusage's figure: a process inherits that of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    print("\n" + json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
