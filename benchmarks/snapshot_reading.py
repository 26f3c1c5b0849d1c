"""Time and memory that `steptime memory` takes for snapshots of any size, made of a real one by repeating its events.

    python -m benchmarks.snapshot_reading SNAPSHOT.pickle --size 1000 -o benchmarks/results/snapshot-reading.md

The bytes of the events are written again and again: every event is a dictionary of its own, as in a real file, and
its call stack refers to the frames of the first time.
"""

from __future__ import annotations

import argparse
import json
import pickletools
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = """
import json, resource, sys, time
from pathlib import Path
begin = time.perf_counter()
from steptime.memory.report import triage_path
report = triage_path(Path(sys.argv[1]))
print(json.dumps({
    "seconds": time.perf_counter() - begin,
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "reader": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    "events": report.devices[0].timeline[-1].event,
    "peak": report.devices[0].peak,
}))
"""


def enlarge(source: Path, target: Path, size: int) -> None:
    """Writes a snapshot of at least `size` bytes."""
    whole = source.read_bytes()
    start, end = events_of(whole)
    with target.open("wb") as file:
        file.write(whole[:end])
        while file.tell() < size:
            file.write(whole[start:end])
        file.write(whole[end:])


def events_of(whole: bytes) -> tuple[int, int]:
    """The bytes of the events of the first device: from the mark behind its list to the end of its last batch."""
    seen, lists, start, depth = False, 0, 0, 0
    for opcode, argument, position in pickletools.genops(whole):
        seen = seen or argument == "device_traces"
        if not seen or position is None:
            continue
        if not start:
            lists += opcode.name == "EMPTY_LIST"
            start = position if lists == 2 and opcode.name == "MARK" else 0
            depth = 1 if start else 0
        elif opcode.name == "MARK":
            depth += 1
        elif opcode.name in ("APPENDS", "SETITEMS", "TUPLE"):
            depth -= 1
            end = position + 1
        if start and depth == 0 and whole[end : end + 1] != b"(" and whole[end : end + 1] != b"\x95":
            return start, end
    raise SystemExit("no events of a device were found")


def measure(path: Path) -> dict[str, float]:
    """What one process took."""
    done = subprocess.run([sys.executable, "-c", JOB, str(path)], capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--size", type=int, default=1000, help="MB")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    lines = ["# Snapshots", "", f"{platform.machine()}, Python {platform.python_version()}; made of",
             f"`{options.snapshot.name}` by repeating its events (benchmarks/snapshot_reading.py).", "",
             "| file, MB | events | seconds | most memory, MB | of the reading process, MB |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (options.size // 10, options.size):
            path = Path(folder) / "large.pickle"
            enlarge(options.snapshot, path, megabytes * 1_000_000)
            found = measure(path)
            size = path.stat().st_size / 1e6
            figures = (size, found["events"], found["seconds"], found["memory"] / 1e6, found["reader"] / 1e6)
            cells = [f"{figure:,.0f}" for figure in figures]
            lines.append(f"| {' | '.join(cells)} |")
            path.unlink()
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
