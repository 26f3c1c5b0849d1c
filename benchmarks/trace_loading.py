"""How fast and in how much memory traces are read, next to Holistic Trace Analysis.

    python -m benchmarks.trace_loading --trace ../shared/data/hta/ns_resolution_trace/<file> \\
        [--megabytes 100,1000,3000] [--rounds 5,3,1] [--hta-python PATH]... [--hta-up-to 100] [--name MACHINE]

The real trace's events are repeated with jitter (large_trace.py) until the file has the wanted size. Each measurement
is a process of its own; all take turns within a round. Python's start and imports do not count, for nobody. Ratios are
of the same round; figures are medians with the lowest and highest round. The peak is VmHWM of the whole process.
--hta-python is an interpreter with HolisticTraceAnalysis or traceinsight, which are not installed for this.
Writes results/trace-loading-<machine>.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
JOB = HERE / "trace_loading_job.py"
OURS = ("nothing", "read", "diagnose", "second look", "diagnose again")
THEIRS = ("parser", "TraceAnalysis()")
RANK_FILE = "rank-0.json"
"""HTA finds the rank in the name."""


def main() -> None:
    """Makes the traces, measures, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="a real trace, whose steps are repeated")
    parser.add_argument("--megabytes", default="100")
    parser.add_argument("--rounds", default="5", help="of each size, or one number for all")
    parser.add_argument("--hta-python", action="append", default=[])
    parser.add_argument("--hta-up-to", type=int, default=100, metavar="MB")
    parser.add_argument("--name", default=platform.machine() + f"-{os.cpu_count()}cpu")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "trace": options.trace.name, "sizes": []}
    target = HERE / "results" / f"trace-loading-{options.name}"
    sizes = [int(size) for size in options.megabytes.split(",")]
    rounds = [int(count) for count in options.rounds.split(",")]
    for megabytes, count in zip(sizes, rounds * (len(sizes) if len(rounds) == 1 else 1), strict=True):
        others = options.hta_python if megabytes <= options.hta_up_to else []
        results["sizes"].append(of_size(options.trace, megabytes, count, others))
        target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        target.with_suffix(".md").write_text(show(results))
    print(show(results))


def of_size(trace: Path, megabytes: int, rounds: int, others: list[str]) -> dict[str, Any]:
    """All measurements of a trace of one size."""
    from benchmarks.large_trace import repeat

    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = Path(folder) / RANK_FILE
        repeat(trace, path, megabytes * 10**6)
        hours_ago = time.time() - 7200  # as traces are; a file that was written just now is not remembered
        os.utime(path, (hours_ago, hours_ago))
        os.environ["STEPTIME_CACHE_DIR"] = str(Path(folder) / "cache")
        time.sleep(2.5)  # the change's own time cannot be set: the cache waits two seconds
        runs = [one_round(path, others) for _ in range(rounds)]
        return {"bytes": path.stat().st_size, "events": runs[0]["read"]["events"], "rounds": runs}


def one_round(path: Path, others: list[str]) -> dict[str, Any]:
    """Each measurement once."""
    found = {what: in_a_process(sys.executable, what, path) for what in OURS}
    for python in others:
        for what in THEIRS:
            result = in_a_process(python, what, path)
            found[f"{result['version']} {what}"] = result
    return found


def in_a_process(python: str, what: str, path: Path) -> dict[str, Any]:
    """The measurement of a fresh interpreter."""
    # BLAS starts threads that spin for a while, whether needed or not: none of it, for nobody.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [python, str(JOB), what, str(path)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def machine() -> dict[str, Any]:
    """Where this was measured."""
    import isal
    import msgspec
    import numpy

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "msgspec": msgspec.__version__,
        "isal": isal.__version__,
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def show(results: dict[str, Any]) -> str:
    """The Markdown next to the JSON."""
    about = results["machine"]
    lines = [
        "# Reading traces\n",
        f"{about['cpu']}, {about['cpus']} CPUs, Python {about['python']}, numpy {about['numpy']}, msgspec "
        f"{about['msgspec']}, {about['date']}, load {about['load_before']:.1f}. Medians, "
        f"with the lowest and highest round; made by `python -m benchmarks.trace_loading` from `{results['trace']}`.\n",
    ]
    for size in results["sizes"]:
        lines += ["\n".join(table(size)), ""]
    return "\n".join(lines)


def table(size: dict[str, Any]) -> list[str]:
    """One size: what everything took, next to reading."""
    megabytes, rounds = size["bytes"] / 1e6, size["rounds"]
    idle = statistics.median(each["nothing"]["peak"] for each in rounds) / 1e6
    read = [each["read"] for each in rounds]
    lines = [
        f"## {megabytes:.0f} MB of JSON, {size['events']:,} events with a duration, {len(rounds)} rounds\n",
        f"A process that has only imported the reader holds {idle:.0f} MB; it is part of the peaks.\n",
        "| | CPU s | wall s | MB per CPU s | CPU, × our read | peak MB | peak, MB per MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for what in rounds[0]:
        if what == "nothing":
            continue
        mine = [each[what] for each in rounds]
        ratio = span([one["cpu"] / other["cpu"] for one, other in zip(mine, read, strict=True)], 3)
        cpu, peak = statistics.median(one["cpu"] for one in mine), statistics.median(one["peak"] for one in mine) / 1e6
        seconds = [span([one[kind] for one in mine], 3) for kind in ("cpu", "wall")]
        name = what if what not in OURS else f"steptime: {what}"
        cells = (name, *seconds, f"{megabytes / cpu:.0f}", ratio, f"{peak:.0f}", f"{peak / megabytes:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def span(values: list[float], digits: int) -> str:
    """Median (lowest to highest), with so many significant digits."""
    low, middle, high = (f"{value:.{digits}g}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
