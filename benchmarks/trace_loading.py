"""How fast and in how much memory `steptime.kineto` reads a large trace, beside the json module.

    python benchmarks/trace_loading.py TRACE [--megabytes 100] [--rounds 3]

TRACE is a real trace, plain or gzipped; its events are repeated until the file has the wanted size. Each reading is a
process of its own, the two readers take turns, CPU seconds are what counts on a shared machine; the peak is of the
whole process, less that of one which only imports.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READERS = ("steptime", "json")


def main() -> None:
    """Writes the trace, measures, prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read", choices=(*READERS, "nothing"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(measure(options.read, options.trace)))
        return
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.json"
        repeat(options.trace, large, options.megabytes * 10**6)
        report(large, options.rounds)


def repeat(source: Path, target: Path, size: int) -> None:
    """Repeats the events of a trace, as text, until the file has `size` bytes."""
    raw = source.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    _, after = json.JSONDecoder().raw_decode(text, begin - 1)
    end = after - 1
    events = text[begin:end].strip()
    with target.open("w") as file:
        file.write(text[:begin])
        while file.tell() + len(events) < size:
            file.write(events + ",\n  ")
        file.write(events + text[end:])


def measure(reader: str, path: Path) -> dict[str, float]:
    """CPU seconds, events and peak memory of one reading in this process."""
    from steptime.kineto.reader import read

    events = 0
    begin = time.process_time()
    if reader == "steptime":
        events = len(read(path).events)
    elif reader == "json":
        with path.open() as file:
            events = sum(event.get("ph") == "X" for event in json.load(file)["traceEvents"])
    spent = time.process_time() - begin
    return {"cpu": spent, "events": events, "peak": peak_memory()}


def peak_memory() -> int:
    """Bytes. Not getrusage's figure: a process inherits that of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def report(path: Path, rounds: int) -> None:
    """Takes turns, prints medians."""
    megabytes = path.stat().st_size / 1e6
    idle = in_a_process("nothing", path)["peak"]
    runs = [(reader, in_a_process(reader, path)) for _ in range(rounds) for reader in READERS]
    found: dict[str, object] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
    }
    found |= {"megabytes": round(megabytes, 1), "rounds": rounds}
    for reader in READERS:
        mine = [result for name, result in runs if name == reader]
        speeds = sorted(round(megabytes / each["cpu"], 1) for each in mine)
        peak = (statistics.median(each["peak"] for each in mine) - idle) / 1e6
        found[reader] = {"MB per CPU-second": speeds, "events": mine[0]["events"], "peak MB": round(peak, 1)}
        speed = statistics.median(speeds)
        print(f"{reader:10} {speed:7.1f} MB per CPU-second, peak {peak / megabytes:5.2f} MB per MB")
    print(json.dumps(found))


def in_a_process(reader: str, path: Path) -> dict[str, float]:
    """The measurement of a fresh interpreter."""
    command = [sys.executable, __file__, str(path), "--read", reader]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


if __name__ == "__main__":
    main()
