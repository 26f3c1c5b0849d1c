"""Processor time and peak memory of whole commands, of two or more installations in turns.

    python -m benchmarks.diagnosis_cpu TRACE... --steptime NAME=PATH... [--other NAME=COMMAND]... [--rounds 5]

For each trace: `diagnose --no-cache` (cold) and `diagnose` with its columns in the cache (warm); and `--version`. Every
installation has its own cache and its own compiled modules, which one round before the measured ones fills. Other
programs run in the same turns, once for each trace, as a shell's command in which {} stands for the trace. Seconds are
user and system of the process and its children; the peak is the largest resident size. Writes
results/diagnosis-cpu-MACHINE.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--steptime", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default=platform.machine() + f"-{os.cpu_count()}cpu")
    options = parser.parse_args()
    programs = dict(each.split("=", 1) for each in options.steptime)
    others = dict(each.split("=", 1) for each in options.other)
    commands = {"--version": (["--version"], Path())}
    for trace in options.traces:
        name = f"{trace.name}, {trace.stat().st_size / 1e6:.0f} MB"
        commands[f"{name}, cold"] = ["diagnose", "--no-cache", str(trace)], trace
        commands[f"{name}, warm"] = ["diagnose", str(trace)], Path()
    lines = [
        "# Processor time of a whole diagnosis",
        "",
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, numpy {version('numpy')}, msgspec "
        f"{version('msgspec')}, load {os.getloadavg()[0]:.0f}; median (lowest to highest) of {options.rounds} rounds "
        "in turns; made by `python -m benchmarks.diagnosis_cpu`.",
        "",
        "| command | " + " | ".join(f"{name}, CPU s | {name}, peak MB" for name in (*programs, *others)) + " |",
        "|---" * (1 + 2 * len(programs) + 2 * len(others)) + "|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for what, (words, trace) in commands.items():
            asked = [[each, *words] for each in programs.values()]
            if trace != Path():
                asked += [["/bin/sh", "-c", "exec " + each.format(trace)] for each in others.values()]
            runs = [[measured(each, Path(folder)) for each in asked] for _ in range(options.rounds + 1)]
            cells = [message(column) for column in zip(*runs[1:], strict=True)]
            cells += ["– | –"] * (len(programs) + len(others) - len(asked))
            lines.append(f"| {what} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    (RESULTS / f"diagnosis-cpu-{options.name}.md").write_text("\n".join(lines) + "\n")


def measured(words: list[str], folder: Path) -> tuple[float, float]:
    """CPU seconds and peak MB of one command."""
    own = folder / words[0].strip("/").replace("/", "-")
    environment = os.environ | {"STEPTIME_CACHE_DIR": str(own / "cache"), "PYTHONPYCACHEPREFIX": str(own / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(words)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def message(runs: tuple[tuple[float, float], ...]) -> str:
    """The cells of one installation."""
    seconds = [each[0] for each in runs]
    spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
    return f"{statistics.median(seconds):.2f} ({spread}) | {statistics.median(each[1] for each in runs):.0f}"


if __name__ == "__main__":
    main()
