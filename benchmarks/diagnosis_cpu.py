"""Processor time and peak memory of whole commands, of two or more installations in turns.

    python benchmarks/diagnosis_cpu.py TRACE... --steptime NAME=PATH --steptime NAME=PATH [--rounds 5] [--name MACHINE]

For each trace: `diagnose --no-cache` (cold) and `diagnose` with its columns in the cache (warm); and `--version`. Every
installation has its own cache and its own compiled modules, which one round before the measured ones fills. Seconds are
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default=platform.machine() + f"-{os.cpu_count()}cpu")
    options = parser.parse_args()
    programs = dict(each.split("=", 1) for each in options.steptime)
    commands = {"--version": ["--version"]}
    for trace in options.traces:
        name = f"{trace.name}, {trace.stat().st_size / 1e6:.0f} MB"
        commands[f"{name}, cold"] = ["diagnose", "--no-cache", str(trace)]
        commands[f"{name}, warm"] = ["diagnose", str(trace)]
    lines = [
        "# Processor time of a whole diagnosis",
        "",
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, numpy {version('numpy')}, msgspec "
        f"{version('msgspec')}, load {os.getloadavg()[0]:.0f}; median (lowest to highest) of {options.rounds} rounds "
        "in turns; made by `python benchmarks/diagnosis_cpu.py`.",
        "",
        "| command | " + " | ".join(f"{name}, CPU s | {name}, peak MB" for name in programs) + " |",
        "|---" * (1 + 2 * len(programs)) + "|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for what, words in commands.items():
            runs = [
                [measured(each, words, Path(folder)) for each in programs.values()] for _ in range(options.rounds + 1)
            ]
            cells = [said(column) for column in zip(*runs[1:], strict=True)]
            lines.append(f"| {what} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    (RESULTS / f"diagnosis-cpu-{options.name}.md").write_text("\n".join(lines) + "\n")


def measured(program: str, words: list[str], folder: Path) -> tuple[float, float]:
    """CPU seconds and peak MB of one command."""
    own = folder / program.strip("/").replace("/", "-")
    environment = os.environ | {"STEPTIME_CACHE_DIR": str(own / "cache"), "PYTHONPYCACHEPREFIX": str(own / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{program} {' '.join(words)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def said(runs: tuple[tuple[float, float], ...]) -> str:
    """The cells of one installation."""
    seconds = [each[0] for each in runs]
    spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
    return f"{statistics.median(seconds):.2f} ({spread}) | {statistics.median(each[1] for each in runs):.0f}"


if __name__ == "__main__":
    main()
